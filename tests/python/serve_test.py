"""Ranks that call nearstep.serve() hold the state of any PyTorch model; masters are those of devices on the ranks that
train.
"""

import shutil
import subprocess
import sys

import launcher

launcher.need()

TRAINING = 2


class Serve(launcher.FolderTest):
    def trained(self, serving, steps, *words, folder="run", script="serve_worker.py"):
        """Trains and returns the line that rank 0 prints at the end."""
        (self.folder / folder).mkdir(exist_ok=True)
        worker = launcher.Process(TRAINING + serving, script, self.folder / folder, serving, steps, *words)
        code = worker.wait()
        text = worker.text()
        self.assertEqual(code, 0, text[-4000:])
        return [line for line in text.splitlines() if line.startswith("masters ")][-1]

    def test_masters_are_those_without_ranks_that_serve(self):
        for serving, words in ((1, ()), (2, ("codec=q4", "changes"))):
            with self.subTest(words=words, serving=serving):
                usual = self.trained(0, 4, *words, folder=f"usual-{serving}")
                folder = f"serving-{serving}"
                self.assertEqual(self.trained(serving, 4, *words, folder=folder), usual)
                self.assertEqual([path.name for path in (self.folder / folder / "state").glob("*.state")], [])
                self.assertTrue(list((self.folder / folder / f"drive-{TRAINING}").glob("*.state")))

    def test_two_optimizers_with_weights_of_a_folder_and_a_step_that_is_given_up(self):
        usual = self.trained(0, 4, folder="usual", script="serve_together_worker.py")
        self.assertEqual(self.trained(1, 4, script="serve_together_worker.py"), usual)
        states = [str(path.relative_to(self.folder / "run")) for path in (self.folder / "run").rglob("*.state")]
        self.assertEqual(
            sorted(states),
            [f"drive-{TRAINING}/{below}rank-{TRAINING}.device-0.state" for below in ("optimizer-2/", "")],
        )

    def test_a_run_resumes_from_its_steps_and_with_other_ranks_from_its_checkpoint(self):
        usual = self.trained(0, 9, folder="usual")
        self.trained(1, 3, "save")
        self.trained(1, 6, "resume", "save")
        for serving in (2, 0):
            shutil.copytree(self.folder / "run", self.folder / f"run-{serving}")
            with self.subTest(serving=serving):
                self.assertEqual(self.trained(serving, 9, "resume", folder=f"run-{serving}"), usual)

    def test_a_rank_that_serves_alone_ends_in_a_sentence(self):
        done = subprocess.run(
            [sys.executable, "-m", "nearstep", "serve", self.folder], capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r"(?m)^nearstep: .*\.$")
        self.assertNotIn("Traceback", done.stderr)

    def test_a_rank_that_serves_with_settings_that_do_not_fit_ends_all(self):
        (self.folder / "run").mkdir()
        worker = launcher.Process(TRAINING + 1, "serve_worker.py", self.folder / "run", 1, 4, "unfit")
        self.assertNotEqual(worker.wait(), 0)
        self.assertIn("csd.slots = -1", worker.text())

    def test_a_rank_that_serves_and_dies_ends_all_and_the_run_resumes(self):
        steps = 30
        (self.folder / "run").mkdir()
        worker = launcher.Process(TRAINING + 1, "serve_worker.py", self.folder / "run", 1, steps, "shared", "kill=12")
        self.assertNotEqual(worker.wait(), 0, worker.text())
        self.assertNotIn("masters", worker.text())
        self.assertEqual(self.trained(1, steps, "shared", "resume"), self.trained(0, steps, folder="usual"))


if __name__ == "__main__":
    launcher.start_forks("torch")
    launcher.main()
