"""Training with nearstep equals training with torch.optim: runs equality_worker.py on 1, 2 and 4 ranks.
NEARSTEP_TEST_DEVICE=cuda: on 2, with a GPU each."""

import json
import shutil
import subprocess
import unittest

import equality_cases
import launcher


def needed(name):
    return launcher.NEEDED + equality_cases.NEEDS.get(name, ())


class Equality(launcher.FolderTest):
    """Starts one run per number of ranks, whose cases are the subtests."""

    def check(self, ranks):
        chosen, cases = [], equality_cases.ON_RANKS[ranks]
        if launcher.DEVICE != "cpu":
            cases = equality_cases.ON_GPUS.get(ranks, []) if ranks <= launcher.gpus() else []
        if not cases:
            self.skipTest(f"there are no {ranks} GPUs here, or no cases for so many")
        for name in cases:
            absent = launcher.missing(*needed(name))
            if absent:
                with self.subTest(case=name):
                    self.skipTest(absent)
            else:
                chosen.append(name)
        if not chosen:
            self.skipTest(launcher.missing(*launcher.NEEDED))
        worker = launcher.Process(ranks, "equality_worker.py", self.folder, *chosen)
        code = worker.wait()
        for rank in range(ranks):
            results = self.folder / f"results-{rank}.jsonl"
            lines = results.read_text().splitlines() if results.exists() else []
            found = {one["name"]: one["failure"] for one in map(json.loads, lines)}
            for name in chosen:
                with self.subTest(case=name, rank=rank):
                    self.assertIn(name, found, f"it did not end; the worker's output:\n{worker.text()[-4000:]}")
                    self.assertEqual(found[name], "", found[name])
        self.assertEqual(code, 0, worker.text()[-4000:])

    @unittest.skipIf(launcher.DEVICE != "cpu", "it trains on the CPU")
    def test_recorded_gradients_give_the_masters_that_they_give_a_program_in_c_plus_plus(self):
        if absent := launcher.missing(*launcher.NEEDED):
            self.skipTest(absent)
        recorded = self.folder / "gradients"
        self.output_of([*launcher.command(1, "recorded_worker.py"), recorded, "-", "-", 0, 0])
        for ranks, codec in ((1, "dense"), (1, "q4"), (2, "q8")):
            with self.subTest(ranks=ranks, codec=codec):
                common = (recorded, self.folder / "state", codec, 10)
                python = self.output_of([*launcher.command(ranks, "recorded_worker.py", *common, ranks)])
                native = self.output_of(
                    [*launcher.command(ranks, launcher.programs.find("recorded_gradients"), *common)]
                )
                self.assertRegex(native, r"^[0-9]+\n$")
                self.assertEqual(python, native)

    def output_of(self, command):
        done = subprocess.run(
            list(map(str, command)),
            env=launcher.environment(),
            capture_output=True,
            text=True,
            timeout=2 * launcher.WORKERS_LIMIT_S,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        shutil.rmtree(self.folder / "state", ignore_errors=True)
        return done.stdout

    def test_on_1_rank(self):
        self.check(1)

    def test_on_2_ranks(self):
        self.check(2)

    def test_on_4_ranks(self):
        self.check(4)


if __name__ == "__main__":
    launcher.start_forks(
        "torch",
        *(f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "llama", "bert", "bloom", "vit", "qwen2")),
        "peft",
    )
    launcher.main()
