#!/usr/bin/env python3
"""Checks that fpga/README.md has the cycle model's output.

    tests/fpga/check_readme.py CYCLE_MODEL
"""

import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).resolve().parents[2] / "fpga/README.md"


def main():
    printed = subprocess.run([sys.argv[1]], capture_output=True, text=True, check=True).stdout
    text = README.read_text()
    missing = [line for line in printed.splitlines() if line not in text.splitlines()]
    assert not missing, "fpga/README.md lacks lines that the cycle model prints:\n" + "\n".join(missing)
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    stale = [line for line in text.splitlines() if re.match(r"\| (fp32|bf16|q8|compact) \|", line) and line not in rows]
    assert not stale, "fpga/README.md has lines that the cycle model no longer prints:\n" + "\n".join(stale)
    print(f"check_readme: {len(rows)} rows")


if __name__ == "__main__":
    main()
