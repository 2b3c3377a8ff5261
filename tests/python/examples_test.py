"""The programs in examples/ learn, and resume to the same bits after a stop. The Trainer on several ranks."""
import os
import pathlib
import re
import shutil
import unittest.mock

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

    def test_the_address_of_rank_0(self):
        if absent := launcher.missing(*launcher.NEEDED):
            self.skipTest(absent)
        from nearstep import _ranks

        def address(ranks, **variables):
            with unittest.mock.patch.dict(os.environ, variables, clear=True):
                _ranks._set_address(ranks)
                return os.environ.get("MASTER_ADDR"), int(os.environ.get("MASTER_PORT", 0))

        host, port = address(4, OMPI_COMM_WORLD_LOCAL_SIZE="4", PMIX_NAMESPACE="one")
        self.assertEqual(host, "127.0.0.1")
        self.assertTrue(20000 <= port < 30000)
        self.assertEqual(address(4, OMPI_COMM_WORLD_LOCAL_SIZE="4", PMIX_NAMESPACE="one"), (host, port))
        self.assertNotEqual(address(4, OMPI_COMM_WORLD_LOCAL_SIZE="4", PMIX_NAMESPACE="another")[1], port)
        for nodes, first in (("gpu[07-09,12]", "gpu07"), ("gpu[3,5]", "gpu3"), ("alpha,beta[1-2]", "alpha"), ("a-1.site", "a-1.site")):
            self.assertEqual(address(8, SLURM_STEP_NODELIST=nodes)[0], first)
        self.assertEqual(address(8, OMPI_COMM_WORLD_LOCAL_SIZE="4"), (None, 0), "several hosts, of which the launcher says nothing")
        self.assertEqual(address(4, OMPI_COMM_WORLD_LOCAL_SIZE="4", MASTER_ADDR="given", MASTER_PORT="5")[0], "given")

    def test_the_trainer_on_2_ranks_has_the_losses_of_one_with_all_rows(self):
        for accumulation in (1, 2):
            with self.subTest(accumulation=accumulation):
                said = []
                for ranks in (1, 2):
                    (self.folder / f"{accumulation}-{ranks}").mkdir()
                    said.append(self.run_example(ranks, launcher.HERE / "trainer_worker.py", self.folder / f"{accumulation}-{ranks}", accumulation))
                losses = [[float(loss) for loss in re.search(r"losses \[(.*)\]", text)[1].replace("'", "").split(",")] for text in said]
                self.assertEqual(len(losses[0]), 5)
                for one, other in zip(*losses, strict=True):
                    self.assertAlmostEqual(one, other, delta=2e-4)
                self.assertEqual([re.search("sums (.*)", text)[1] for text in said], ["None", "False"], "DistributedDataParallel adds nothing up")


if __name__ == "__main__":
    launcher.start_forks("torch", "transformers.models.gpt2.modeling_gpt2", "transformers.trainer")
    launcher.main()
