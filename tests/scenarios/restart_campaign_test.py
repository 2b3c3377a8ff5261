"""Rounds of tests/campaigns/restart_campaign, as many as have every fault at least once. tests/run --long starts the
program itself instead of forks."""

import os
import subprocess
import tempfile
import unittest

import program


class RestartCampaign(unittest.TestCase):
    def test_no_round_loses_a_step_or_takes_another_line_or_begins_anew_unasked(self):
        self.run_rounds("--rounds", "19", "--seed", "1")

    @unittest.skipUnless(os.path.isdir("/dev/shm"), "the machine has no file system in memory")
    def test_nor_does_one_with_state_in_memory(self):
        with tempfile.TemporaryDirectory(prefix="nearstep-campaign-", dir="/dev/shm") as folder:
            self.run_rounds("--rounds", "6", "--seed", "2", "--folder", folder)

    def run_rounds(self, *arguments):
        program.scratch()
        environment = {
            key: value
            for key, value in os.environ.items()
            if key != "NEARSTEP_TEST_PROGRAMS" or "NEARSTEP_LONG" not in os.environ
        }
        done = subprocess.run(
            [program.ROOT / "tests/campaigns/restart_campaign", *arguments],
            text=True,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        print(done.stdout, flush=True)
        self.assertEqual(done.returncode, 0)


if __name__ == "__main__":
    program.main()
