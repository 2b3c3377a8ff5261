#!/usr/bin/env python3
"""Checks that fpga/README.md and docs/smartssd.md have the cycle model's output.

    tests/fpga/check_readme.py CYCLE_MODEL
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"fpga/README.md": (), "docs/smartssd.md": ("--compare",)}


def check(page, options):
    """Returns the number of rows."""
    printed = subprocess.run([sys.argv[1], *options], capture_output=True, text=True, check=True).stdout.splitlines()
    lines = (ROOT / page).read_text().splitlines()
    missing = [line for line in printed if line not in lines]
    assert not missing, f"{page} lacks lines that the cycle model prints:\n" + "\n".join(missing)
    rows = [line for line in printed if line.startswith("| ")]
    stale = [line for line in lines if re.match(r"\| (fp32|bf16|q8|compact) \|", line) and line not in rows]
    assert not stale, f"{page} has lines that the cycle model no longer prints:\n" + "\n".join(stale)
    return len(rows)


def main():
    print(f"check_readme: {sum(check(page, options) for page, options in PAGES.items())} rows")


if __name__ == "__main__":
    main()
