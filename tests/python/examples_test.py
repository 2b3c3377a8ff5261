"""The programs in examples/ learn, and resume to the same bits after a stop."""
import pathlib
import re
import shutil

import launcher

EXAMPLES = pathlib.Path("../../examples")


class Examples(launcher.FolderTest):
    def run_example(self, ranks, name, *arguments, **variables):
        absent = launcher.missing(*launcher.NEEDED, "transformers", "accelerate")
        if absent:
            self.skipTest(absent)
        worker = launcher.Process(ranks, EXAMPLES / name, *arguments, **variables)
        self.assertEqual(worker.wait(), 0, worker.text()[-4000:])
        return worker.text()

    def test_the_loop_learns_and_goes_on_with_another_number_of_ranks(self):
        first = self.run_example(2, "train_loop.py", self.folder, STEPS="12")
        losses = [float(loss) for loss in re.findall(r"step \d+ loss (\S+)", first)]
        self.assertEqual(len(losses), 12)
        self.assertLess(losses[-1], losses[0] - 1)
        self.assertEqual(len(set(re.findall(r"masters ([0-9a-f]{16})", first))), 1, first)
        rest = self.run_example(1, "train_loop.py", self.folder, STEPS="16")
        self.assertEqual(re.findall(r"step (\d+) loss", rest), ["13", "14", "15", "16"])
        self.assertNotIn("lr_scheduler", rest, "a warning that PyTorch gives to schedulers that catch up")

    def test_the_trainer_goes_on_from_its_checkpoint_to_the_same_bits(self):
        whole = self.run_example(1, "transformers_trainer.py", self.folder, STEPS="8")
        shutil.rmtree(self.folder / "trainer/checkpoint-8")
        resumed = self.run_example(1, "transformers_trainer.py", self.folder, "--resume", STEPS="8")
        masters = [re.search(r"masters ([0-9a-f]{16})", text).group(1) for text in (whole, resumed)]
        self.assertEqual(*masters)
        self.assertEqual(len(re.findall(r"'grad_norm'", resumed)), 4)


if __name__ == "__main__":
    launcher.start_forks("torch", "transformers.models.gpt2.modeling_gpt2", "transformers.trainer")
    launcher.main()
