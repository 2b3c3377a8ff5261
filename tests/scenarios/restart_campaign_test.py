"""Rounds of tests/campaigns/restart_campaign: every fault once, the last four with state in memory. tests/run --long
has more rounds, and starts the program itself instead of forks."""

import os
import subprocess
import tempfile
import unittest

import program


SEED = 16  # its first 17 rounds have each fault once
IS_LONG = "NEARSTEP_LONG" in os.environ
ON_DRIVES, IN_MEMORY = (19, 19) if IS_LONG else (13, 4)


class RestartCampaign(unittest.TestCase):
    def test_no_round_loses_a_step_or_takes_another_line_or_begins_anew_unasked(self):
        self.run_rounds("--rounds", ON_DRIVES)

    @unittest.skipUnless(os.path.isdir("/dev/shm"), "the machine has no file system in memory")
    def test_nor_does_one_with_state_in_memory(self):
        with tempfile.TemporaryDirectory(prefix="nearstep-campaign-", dir="/dev/shm") as folder:
            self.run_rounds("--rounds", IN_MEMORY, "--first", ON_DRIVES, "--folder", folder)

    def run_rounds(self, *arguments):
        program.scratch()
        environment = {
            key: value for key, value in os.environ.items() if key != "NEARSTEP_TEST_PROGRAMS" or not IS_LONG
        }
        done = subprocess.run(
            [program.ROOT / "tests/campaigns/restart_campaign", "--seed", str(SEED), *map(str, arguments)],
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
