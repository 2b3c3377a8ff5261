#!/usr/bin/env python3
"""Runs fpga/first_run on an emulated card: one that works, one without peer to peer, and one that is not there.

tests/fpga/check_first_run.py PROGRAM EMULATED_CARDS
"""

import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
import open_mpi  # noqa: E402


def first_run(folder, faults="", card="0", xclbin=None):
    """The report's lines by what they are on."""
    cards = pathlib.Path(sys.argv[2])
    environment = {
        **os.environ,
        **open_mpi.environment(),
        "OMP_NUM_THREADS": "1",
        "XILINX_XRT": str(cards),
        "XRT_INI_PATH": str(cards / "xrt.ini"),
        "NEARSTEP_EMULATED_CARDS": "1",
        "NEARSTEP_CARD_FAULTS": faults,
    }
    done = subprocess.run(
        [
            ROOT / "fpga/first_run",
            "--folder",
            folder / "drive",
            "--card",
            card,
            "--program",
            sys.argv[1],
            "--xclbin",
            xclbin or cards / "nearstep.xclbin",
            "--report",
            folder / "report",
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    text = (folder / "report").read_text()
    assert text in done.stdout and not list((folder / "drive").iterdir()), done.stdout
    lines = [line for line in text.splitlines() if line[:3] in ("ok ", "NO ", "-- ")]
    return {line[3:].partition(":")[0]: line for line in lines}


def failed(lines):
    return [what for what, line in lines.items() if line.startswith("NO")]


def main():
    with tempfile.TemporaryDirectory(dir=pathlib.Path(sys.argv[2]).parent) as name:
        folder = pathlib.Path(name)
        lines = first_run(folder)
        # An emulated card has a shell of its own.
        assert failed(lines) == ["platform"], lines
        assert sum(what.startswith("one subgroup") for what in lines) == 4, lines
        assert all(lines[what].startswith("ok") for what in ("card", "direct I/O", "largest bank")), lines
        assert "between drive and card" in lines["transfers (fp32, su+o)"], lines

        lines = first_run(folder, faults="no_p2p=0:0")
        assert "transfers (fp32, su+o)" in failed(lines) and "one subgroup (fp32, su+o)" not in failed(lines), lines

        lines = first_run(folder, faults="run_error=0:0")
        assert "one subgroup (fp32, su+o)" in failed(lines), lines

        assert "card" in failed(first_run(folder, card="0000:01:00.1"))

        broken = folder / "broken.xclbin"
        broken.write_bytes(b"xclbin2\0")
        assert "kernels" in failed(first_run(folder, xclbin=broken))
    print("check_first_run: 5 runs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
