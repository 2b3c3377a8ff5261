"""A run that stopped resumes as if it had not."""

import json
import re

import program


# A quarter of that config's tokens.
SHORT_LLAMA = {"train__global_batch": 16, "train__micro_batch": 8, "model__context": 32, "train__evaluate_batches": 4}


class Resume(program.Scenario):
    def test_the_same_layout_resumes_bit_identically(self):
        for config, dtype, steps, more in (
            ("tiny", "bf16", 40, {}),
            ("tiny", "fp16", 40, {}),
            ("llama-small", "bf16", 12, SHORT_LLAMA),
        ):
            with self.subTest(config=config, dtype=dtype):
                self.starts_anew = dtype == "fp16"  # the others show the same within one process
                keys = {
                    "config": f"configs/{config}.toml",
                    "csd__per_rank": 2,
                    "train__steps": steps,
                    "model__dtype": dtype,
                    **more,
                }
                whole = self.train(state=f"whole-{config}-{dtype}", **keys)
                first = self.train(state=f"parts-{config}-{dtype}", train__stop_at=steps // 2, **keys)
                second = self.train(state=f"parts-{config}-{dtype}", flags=["--resume"], **keys)
                self.assertEqual(first["steps"], steps // 2)
                self.assertLess(whole["losses"][-1], whole["losses"][0] - 0.3)
                self.assert_goes_on(whole, first, second)
                self.assertEqual(second["heldout_loss"], whole["heldout_loss"])

    def test_another_number_of_threads_is_said(self):
        """Threads share sums, so their number decides the bits of the model's own arithmetic."""
        said = re.compile(r"\b1 threads per rank\b.*\b2\b")
        for index, flags in ((1, ["--resume"]), (2, ["--from", self.folder / "state/checkpoints/step-00000001.h5"])):
            self.train(train__steps=9, train__stop_at=1, flags=["--fresh"])
            lines = []
            for stop, threads in ((1 + index, 2), (2 + index, 2)):
                more = flags if stop == 1 + index else ["--resume"]
                done = program.succeed(
                    2, *self.arguments(train__steps=9, train__stop_at=stop, flags=more), threads=threads
                )
                lines.append(done.stdout + done.stderr)
            self.assertEqual([len(said.findall(text)) for text in lines], [1, 0], lines)
            self.assertIn("OMP_NUM_THREADS", lines[0])

    def test_waiting_threads_spin_for_a_short_time_unless_the_user_says_otherwise(self):
        shown = {}
        for given in ({}, {"GOMP_SPINCOUNT": "77"}, {"OMP_WAIT_POLICY": "active"}):
            done = program.call(
                program.PROGRAM,
                *self.arguments(state=f"state-{len(shown)}", train__stop_at=1),
                OMP_NUM_THREADS="2",
                OMP_DISPLAY_ENV="VERBOSE",
                **given,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            shown[len(shown)] = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)[-1]
        self.assertEqual((shown[0], shown[1]), ("1000", "77"))
        self.assertGreater(int(shown[2]), 1000)
        launched = program.call(program.ROOT / "launch/ranks", 1, "printenv", "GOMP_SPINCOUNT")
        self.assertEqual(launched.stdout.split(), ["1000"])

    def test_metrics_have_a_line_per_step_and_go_on_after_a_kill(self):
        metrics = self.folder / "metrics.jsonl"
        killed = program.run(
            2, *self.arguments(train__steps=6, flags=["--metrics", metrics]), fault="rank=1 phase=before_commit count=4"
        )
        self.assertEqual(killed.returncode, 137, killed.stderr)
        self.train(train__steps=6, flags=["--metrics", metrics, "--resume"])
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines if "loss" in line], [1, 2, 3, 4, 5, 6])


if __name__ == "__main__":
    program.main()
