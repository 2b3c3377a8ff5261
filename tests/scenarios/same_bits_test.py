"""Runs with several threads give the same bits on a machine with more work than cores."""

import sys
import unittest

import program

TOOL = program.ROOT / "tests/campaigns/same_bits"


def same_bits(path, *arguments):
    return program.call(sys.executable, TOOL, path, "--folder", program.scratch(), *arguments)


class SameBits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Threads that wait do not spin, which took four fifths of the time.
        program.os.environ["OMP_WAIT_POLICY"] = "passive"
        program.start_forks(
            threads=3
        )  # as many as the tool gives a run; a fork uses each library for the first time, too

    def test_sixty_runs_under_load_agree(self):
        done = same_bits(program.PROGRAM_FORKED, "--runs", 60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("60 of 60 runs", done.stdout)

    def test_a_run_that_deviates_is_named(self):
        # A program that trains like ours, but uses another seed in the third run.
        with program.tempfile.TemporaryDirectory(dir=program.scratch()) as folder:
            path = program.make_script(
                program.pathlib.Path(folder) / "deviating",
                'case "$*" in */3/steps.jsonl*) set -- "$@" --set=train.seed=2;; esac\nexec '
                f'"{program.PROGRAM_FORKED}" "$@"',
            )
            done = same_bits(path, "--runs", 4, "--jobs", 2)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("1 deviating, first run 3:", done.stdout)

    def test_runs_that_fail_are_no_agreement(self):
        done = same_bits("/bin/false", "--runs", 2)
        self.assertEqual(done.returncode, 1)
        self.assertIn("0 deviate, 2 failed", done.stdout)


if __name__ == "__main__":
    program.main()
