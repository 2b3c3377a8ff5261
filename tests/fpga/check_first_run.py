#!/usr/bin/env python3
"""Runs fpga/first_run on an emulated card: one that works, one without peer to peer, and one that is not there.

tests/fpga/check_first_run.py PROGRAM EMULATED_CARDS
"""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import sys
import tempfile
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
import open_mpi  # noqa: E402


def loaded():
    """The program as a module, so that its table of trials can be cut."""
    sys.dont_write_bytecode = True
    loader = importlib.machinery.SourceFileLoader("first_run", str(ROOT / "fpga/first_run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("first_run", loader))
    loader.exec_module(module)
    return module


FIRST_RUN = loaded()


def first_run(folder, trials=1, faults="", card="0", xclbin=None):
    """The report's lines by what they are on, with so many of the trials: a fault is the same in all."""
    cards = pathlib.Path(sys.argv[2])
    environment = {
        **open_mpi.environment(),
        "OMP_NUM_THREADS": "1",
        "XILINX_XRT": str(cards),
        "XRT_INI_PATH": str(cards / "xrt.ini"),
        "NEARSTEP_EMULATED_CARDS": "1",
        "NEARSTEP_CARD_FAULTS": faults,
    }
    options = {
        "--folder": folder / "drive",
        "--card": card,
        "--program": sys.argv[1],
        "--xclbin": xclbin or cards / "nearstep.xclbin",
        "--report": folder / "report",
    }
    said = io.StringIO()
    with (
        unittest.mock.patch.dict(os.environ, environment),
        unittest.mock.patch.object(FIRST_RUN, "TRIALS", FIRST_RUN.TRIALS[:trials]),
        unittest.mock.patch.object(sys, "argv", ["first_run", *(str(word) for one in options.items() for word in one)]),
        contextlib.redirect_stdout(said),
    ):
        code = FIRST_RUN.main()
    assert code == 1, said.getvalue()
    text = (folder / "report").read_text()
    assert text in said.getvalue() and not list((folder / "drive").iterdir()), said.getvalue()
    lines = [line for line in text.splitlines() if line[:3] in ("ok ", "NO ", "-- ")]
    return {line[3:].partition(":")[0]: line for line in lines}


def failed(lines):
    return [what for what, line in lines.items() if line.startswith("NO")]


def main():
    with tempfile.TemporaryDirectory(dir=pathlib.Path(sys.argv[2]).parent) as name:
        folder = pathlib.Path(name)
        lines = first_run(folder, trials=4)
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
