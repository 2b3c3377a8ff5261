"""Tests that, if a rank stops while GPUs exchange, every rank ends with a non-zero code and says why. Skipped with
fewer GPUs than ranks."""

import os
import pathlib
import re
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
import programs  # noqa: E402
import verdict  # noqa: E402

PROGRAM = programs.find("nccl_stopped_rank")
LIMIT_S = 4
HANG_S = 150
PHASES = {
    "init": "NCCL's start",
    "reduce_scatter": "a reduce-scatter",
    "exchange": "a send and receive",
    "all_gather": "an all-gather",
    "second_group": "a(n all-gather| send and receive)",
}


def is_alive(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class StoppedRank(unittest.TestCase):
    def run_ranks(self, ranks, phase, how):
        """Returns mpirun's result. The timeout is far above the limit, so that only a hang reaches it."""
        done = subprocess.run(
            [str(ROOT / "launch/ranks"), str(ranks), PROGRAM, phase, how, str(LIMIT_S)],
            text=True,
            errors="replace",
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=HANG_S,
            env=dict(os.environ, NEARSTEP_TIMEOUT="120"),
        )
        if done.returncode == 77:
            self.skipTest(done.stdout.strip())
        processes = re.findall(r"is process (\d+)", done.stdout)
        self.assertEqual(len(processes), ranks, done.stdout + done.stderr)
        end = time.monotonic() + HANG_S
        while any(map(is_alive, processes)):
            self.assertLess(time.monotonic(), end, "a rank lives on")
            time.sleep(0.1)
        return done

    def check_all_end(self, ranks):
        for phase, what in PHASES.items():
            with self.subTest(phase=phase, how="stall"):
                done = self.run_ranks(ranks, phase, "stall")
                self.assertNotIn(done.returncode, (0, 124, 137), done.stderr)
                self.assertRegex(
                    done.stderr,
                    f"nearstep: rank [0-9]+: Another rank did not take part in {what} between GPUs for {LIMIT_S} s",
                )
            with self.subTest(phase=phase, how="kill"):
                done = self.run_ranks(ranks, phase, "kill")
                self.assertNotIn(done.returncode, (0, 124), done.stderr)
                self.assertRegex(
                    done.stderr, r"was ended by SIGKILL|nearstep: rank [0-9]+: (Another rank|NCCL reports)"
                )

    def test_two_ranks(self):
        self.check_all_end(2)

    def test_four_ranks(self):
        self.check_all_end(4)

    def test_nobody_stops(self):
        done = self.run_ranks(2, "none", "stall")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    if not pathlib.Path("/dev/nvidiactl").exists():
        verdict.end_skipped("there is no GPU")
    verdict.main()
