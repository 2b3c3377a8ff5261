"""The programs in examples/ and README's: they learn, and go on after a kill with the losses and bits of a run that was
not killed, on 1 and 2 ranks. The Trainer on several ranks."""

import json
import os
import pathlib
import re
import shutil
import signal
import time
import unittest.mock

import launcher

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def steps_in(text):
    """Pairs of a step and its loss as the examples print them; mpirun may put the words of another rank before the end
    of a line.
    """
    return [(int(step), float(loss)) for step, loss in re.findall(r"step (\d+) loss (-?\d+\.\d{4})", text)]


def losses_in(text):
    """Returns the losses that transformers.Trainer has logged."""
    return [float(loss) for loss in re.findall(r"\{'loss': '?([0-9.e+-]+)", text)]


# The lines that README's snippet leaves to the reader.
README_BEFORE = """
import itertools, os, sys, torch, nearstep
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    def forward(self, number, inputs):
        if os.environ.get("RANK", "0") == "0":
            print(f"row {number.item()} ", flush=True)  # in one piece, into which no other rank writes
        self.loss = (self.layers(inputs) - 1).square().mean()
        return self
torch.manual_seed(0)
model = Network()
loader = torch.utils.data.DataLoader([{"number": number, "inputs": torch.randn(64)} for number in range(24)])
"""
README_AFTER = """
print(f"masters {opt.masters_digest():016x}")
"""


class Examples(launcher.FolderTest):
    def start(self, ranks, *words, packages=("transformers", "accelerate"), **variables):
        absent = launcher.missing(*launcher.NEEDED, *packages)
        if absent:
            self.skipTest(absent)
        return launcher.Process(ranks, *words, **variables)

    def run_example(self, ranks, name, *arguments, **variables):
        worker = self.start(ranks, EXAMPLES / name, *arguments, **variables)
        self.assertEqual(worker.wait(), 0, worker.text()[-4000:])
        return worker.text()

    def run_killed(self, ranks, name, *arguments, last, **variables):
        """Kills the program, which stands still when it has said ``last``."""
        worker = self.start(ranks, "standing_still.py", last, EXAMPLES / name, *arguments, **variables)
        until = time.monotonic() + launcher.WORKERS_LIMIT_S
        while last not in worker.text():
            self.assertIsNone(worker.process.poll(), worker.text()[-4000:])
            self.assertLess(time.monotonic(), until, worker.text()[-4000:])
            time.sleep(0.02)
        worker.signal(signal.SIGKILL)
        worker.wait()
        return worker.text()

    def check_killed(self, name, *arguments, last, **variables):
        """The digest after a kill and a resume on 2 ranks is that of 2 ranks without. Returns what those without and
        the resumed ones said.
        """
        whole = self.run_example(2, name, self.folder / "whole", *arguments, **variables)
        self.run_killed(2, name, self.folder / "killed", *arguments, last=last, **variables)
        resumed = self.run_example(2, name, self.folder / "killed", *arguments, **variables)
        for text in (whole, resumed):
            self.assertEqual(len(set(re.findall(r"masters ([0-9a-f]{16})", text))), 1, text[-4000:])
        digests = [re.search(r"masters ([0-9a-f]{16})", text)[1] for text in (whole, resumed)]
        self.assertEqual(*digests, "the resumed run took other steps")
        return whole, resumed

    def assert_close(self, one, other, delta=2e-3):
        for a, b in zip(one, other, strict=True):
            self.assertAlmostEqual(a, b, delta=delta)

    def test_the_loop_learns_and_goes_on_with_another_number_of_ranks(self):
        first = self.run_example(2, "train_loop.py", self.folder, STEPS="12")
        losses = [loss for _, loss in steps_in(first)]
        self.assertEqual(len(losses), 12)
        self.assertLess(losses[-1], losses[0] - 1)
        self.assertEqual(len(set(re.findall(r"masters ([0-9a-f]{16})", first))), 1, first)
        rest = self.run_example(1, "train_loop.py", self.folder, STEPS="16")
        self.assertEqual([step for step, _ in steps_in(rest)], [13, 14, 15, 16])
        self.assertNotIn("lr_scheduler", rest, "a warning that PyTorch gives to schedulers that catch up")

    def test_what_readme_shows_goes_on_with_the_batches_that_are_left(self):
        shown = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
        program = self.folder / "shown.py"
        program.write_text(README_BEFORE + shown.replace('"/nvme0/run"', "sys.argv[1]") + README_AFTER)
        self.assertIn("sys.argv[1]", program.read_text())
        _, resumed = self.check_killed(program, last="row 15 ")  # to the same masters, so that no batch is left out
        rows = [int(row) for row in re.findall(r"row (\d+) ", resumed)]
        self.assertTrue(0 < len(rows) < 15, rows)
        self.assertEqual(rows, list(range(24 - len(rows), 24)))

    def test_the_loop_leaves_out_the_rows_of_steps_done(self):
        _, resumed = self.check_killed("train_loop.py", last="step 34 loss", STEPS="40")  # in the second epoch
        first = steps_in(resumed)[0][0]
        self.assertIn(first, range(33, 36), "a kill repeats at most two steps")
        self.assertEqual([step for step, _ in steps_in(resumed)], list(range(first, 41)))

    def test_accelerate_goes_on_in_the_middle_of_an_epoch(self):
        whole, resumed = self.check_killed("accelerate_loop.py", last="step 34 loss", STEPS="40")
        alone = self.run_example(1, "accelerate_loop.py", self.folder / "alone", STEPS="40")
        self.assert_close([loss for _, loss in steps_in(alone)], [loss for _, loss in steps_in(whole)], delta=0.02)
        rest = steps_in(resumed)
        self.assertEqual(rest, steps_in(whole)[-len(rest) :])
        self.assertIn(rest[0][0], range(33, 36), "a kill repeats at most two steps")
        self.assertLess(steps_in(alone)[-1][1], 1)

    def test_lightning_goes_on_from_its_checkpoint(self):
        for mode in ((), ("--manual",)):
            with self.subTest(mode=mode):

                def learned(text):
                    return set(re.findall("learned ([0-9.-]+)", text))

                packages, folder = ("lightning",), self.folder / f"lightning-{len(mode)}"
                whole = [
                    self.run_example(ranks, "lightning_module.py", folder / str(ranks), *mode, packages=packages)
                    for ranks in (1, 2)
                ]
                self.assertEqual(learned(whole[0]), learned(whole[1]))
                self.assertEqual(len(learned(whole[0])), 1)
                losses = [loss for _, loss in steps_in(whole[0])]
                self.assertLess(sum(losses[-20:]), sum(losses[:20]) / 2)
                self.run_killed(
                    2, "lightning_module.py", folder / "killed", *mode, packages=packages, last="step 24 loss"
                )
                resumed = self.run_example(2, "lightning_module.py", folder / "killed", *mode, packages=packages)
                self.assertEqual(learned(resumed), learned(whole[1]))
                first = steps_in(resumed)[0]
                self.assertEqual(first[0], 20)
                self.assertEqual(
                    [first], [one for one in steps_in(whole[1]) if one[0] == first[0]][1:], "what follows that step"
                )

    def test_the_notebook_runs_from_top_to_bottom(self):
        cells = json.loads((EXAMPLES / "first_steps.ipynb").read_text(encoding="utf-8"))["cells"]
        program = self.folder / "cells.py"
        program.write_text("\n".join("".join(one["source"]) for one in cells if one["cell_type"] == "code"))
        said = self.run_example(1, program, packages=(), TMPDIR=str(self.folder))
        self.assertIn("nearstep: resumed from the state files at step 30", said)
        self.assertRegex(said, r"(?m)^60 steps, loss ")
        self.assertEqual({one["cell_type"]: one.get("outputs", []) for one in cells}, {"markdown": [], "code": []})

    def test_products_in_float8_learn_and_go_on_to_the_same_bits(self):
        packages, settings = ("transformers", "torchao"), {"STEPS": "10"}
        whole = self.run_example(1, "float8.py", self.folder / "whole", packages=packages, **settings)
        self.run_killed(1, "float8.py", self.folder / "killed", last="step 6 loss", packages=packages, **settings)
        resumed = self.run_example(1, "float8.py", self.folder / "killed", packages=packages, **settings)
        losses = [loss for _, loss in steps_in(whole)]
        self.assertLess(losses[-1], losses[0] / 2)
        rest = steps_in(resumed)
        self.assertIn(rest[0][0], range(5, 8), "a kill repeats at most two steps")
        self.assertEqual(rest, steps_in(whole)[-len(rest) :])
        self.assertEqual(*(re.findall(r"masters ([0-9a-f]{16})", text) for text in (whole, resumed)))

    def test_trl_tunes_adapters_and_goes_on(self):
        packages = ("transformers", "trl", "peft", "datasets")
        settings = {"packages": packages, "STEPS": "20"}
        whole, resumed = self.check_killed("trl_sft.py", last="'epoch': '0.24'}", **settings)
        alone = self.run_example(1, "trl_sft.py", self.folder / "alone", **settings)
        self.assert_close(losses_in(alone), losses_in(whole), delta=0.1)
        self.assert_close(losses_in(alone)[:5], losses_in(whole)[:5])
        rest = losses_in(resumed)
        self.assertTrue(1 < len(rest) < 10, resumed)
        self.assertEqual(rest, losses_in(whole)[-len(rest) :])
        self.assertTrue((self.folder / "killed/adapter/adapter_model.safetensors").exists())

    def test_the_trainer_goes_on_from_its_checkpoint_to_the_same_bits(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                folder = self.folder / str(ranks)
                whole = self.run_example(ranks, "transformers_trainer.py", folder, STEPS="8")
                shutil.rmtree(folder / "trainer/checkpoint-8")
                shutil.rmtree(folder / "trainer/checkpoint-6")
                resumed = self.run_example(ranks, "transformers_trainer.py", folder, "--resume", STEPS="8")
                masters = {one for text in (whole, resumed) for one in re.findall(r"masters ([0-9a-f]{16})", text)}
                self.assertEqual(len(masters), 1)
                self.assertEqual(losses_in(resumed), losses_in(whole)[4:])
                self.assertEqual(len(re.findall(r"'grad_norm'", resumed)), 4)

    def test_the_trainer_loads_the_best_model(self):
        program = self.folder / "best.py"
        text = (EXAMPLES / "transformers_trainer.py").read_text()
        program.write_text(
            text.replace(
                "load_best_model_at_end=True",
                "load_best_model_at_end=True, metric_for_best_model='eval_loss', greater_is_better=True",
            )
        )
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                said = self.run_example(ranks, program, self.folder / str(ranks), STEPS="8")
                best, now = map(float, re.search(r"best (\S+) now (\S+)", said).groups())
                self.assertEqual(best, now)
                measured = [float(loss) for loss in re.findall(r"'eval_loss': '([0-9.]+)", said)]
                self.assertGreater(measured[0], measured[-2] + 0.5, "the first one is the worst, which is kept here")
                self.assertAlmostEqual(best, measured[0], delta=1e-3)
                self.assertEqual(len(set(re.findall(r"masters ([0-9a-f]{16})", said))), 1)

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
        for nodes, first in (
            ("gpu[07-09,12]", "gpu07"),
            ("gpu[3,5]", "gpu3"),
            ("alpha,beta[1-2]", "alpha"),
            ("a-1.site", "a-1.site"),
        ):
            self.assertEqual(address(8, SLURM_STEP_NODELIST=nodes)[0], first)
        self.assertEqual(
            address(8, OMPI_COMM_WORLD_LOCAL_SIZE="4"), (None, 0), "several hosts, of which the launcher says nothing"
        )
        self.assertEqual(address(4, OMPI_COMM_WORLD_LOCAL_SIZE="4", MASTER_ADDR="given", MASTER_PORT="5")[0], "given")

    def test_the_trainer_on_2_ranks_has_the_losses_of_one_with_all_rows(self):
        for accumulation in (1, 2):
            with self.subTest(accumulation=accumulation):
                said = []
                for ranks in (1, 2):
                    (self.folder / f"{accumulation}-{ranks}").mkdir()
                    said.append(
                        self.run_example(
                            ranks,
                            launcher.HERE / "trainer_worker.py",
                            self.folder / f"{accumulation}-{ranks}",
                            accumulation,
                        )
                    )
                losses = [
                    [float(loss) for loss in re.search(r"losses \[(.*)\]", text)[1].replace("'", "").split(",")]
                    for text in said
                ]
                self.assertEqual(len(losses[0]), 5)
                for one, other in zip(*losses, strict=True):
                    self.assertAlmostEqual(one, other, delta=2e-4)
                self.assertEqual(
                    [re.search("sums (.*)", text)[1] for text in said],
                    ["None", "False"],
                    "DistributedDataParallel adds nothing up",
                )
                for text in said:
                    logged = re.search("logged (.*)", text)[1].split()
                    self.assertIn("nearstep/update_s", logged)
                    self.assertIn("nearstep/bytes/internal_write", logged)


if __name__ == "__main__":
    launcher.start_forks(
        "torch",
        "transformers.models.gpt2.modeling_gpt2",
        "transformers.trainer",
        "accelerate",
        "lightning",
        "trl",
        "peft",
        "datasets",
        launcher.COMPILER,
    )
    launcher.main()
