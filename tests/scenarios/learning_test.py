"""Every gradient codec and state format learns as dense gradients and fp32 state do, with its own bytes."""

import json

import program

BYTES = {"dense": 2, "topk": 4 * 656 / 65536, "q8": 1.03125, "q4": 0.53125}
KEYS = {"mode": "su+o+c", "csd__durability": "checkpoint", "train__steps": 20, "csd__per_rank": 2}
FORMATS = ("fp32", "bf16", "q8", "compact")
# The tolerance of the loss after 40 steps, in nats, against fp32 state. Formats and modes differ only by rounding.
TOLERANCE = 0.03


class Codecs(program.Scenario):
    def test_every_codec_learns_and_moves_its_own_bytes(self):
        for codec, size in BYTES.items():
            with self.subTest(codec=codec):
                summary = self.train(compress__codec=codec, **KEYS)
                self.assert_bytes(
                    summary["bytes_per_parameter"]["host_link"]["gradients"], size, program.padding_of(summary)
                )
                self.assertLess(summary["losses"][-1], summary["losses"][0] - 0.3)
                self.assertEqual(summary["skipped_steps"], 0)

    def test_the_warm_up_is_dense(self):
        metrics = self.folder / "metrics.jsonl"
        keys = {**KEYS, "train__steps": 6, "compress__codec": "q4"}
        self.train(compress__warmup_steps=4, flags=["--metrics", metrics], **keys)
        steps = [json.loads(line) for line in metrics.read_text().splitlines()]
        moved = [s["bytes_per_parameter"]["host_link"]["gradients"] for s in steps if "loss" in s]
        self.assertEqual(len(set(moved[:4])), 1)
        self.assertEqual(len(set(moved[4:])), 1)
        self.assertAlmostEqual(moved[0] / moved[4], 2 / BYTES["q4"], places=6)
        dense = self.train(state="dense", **{**keys, "mode": "su+o", "compress__codec": "dense"})
        self.assertEqual([s["loss"] for s in steps if "loss" in s][:5], dense["losses"][:5])

    def test_elements_kept_and_volume_are_two_numbers(self):
        arguments = self.arguments(compress__codec="topk", compress__keep=0.01, **{**KEYS, "train__steps": 2})
        summary = self.folder / "summary.json"
        done = program.succeed(2, *arguments, "--traffic", "--json", summary)
        self.assert_states(done.stdout, "1 %", "0.04004 bytes", "2.002 %")
        compress = json.loads(summary.read_text())["compress"]
        self.assertEqual(compress["kept_share_of_elements"], 0.01)
        self.assertEqual(compress["payload_bytes_per_parameter"], BYTES["topk"])
        self.assertEqual(compress["volume_share_of_dense"], BYTES["topk"] / 2)


class Formats(program.Scenario):
    def test_the_loss_is_that_of_fp32_state(self):
        runs = {state: self.train(csd__state=state) for state in FORMATS}
        self.assertEqual(len({run["masters_xxh3"] for run in runs.values()}), len(FORMATS))
        for state, run in runs.items():
            with self.subTest(state=state):
                self.assertEqual(run["steps"], 40)
                self.assertLessEqual(abs(run["heldout_loss"] - runs["fp32"]["heldout_loss"]), TOLERANCE)
                self.assertLess(run["heldout_loss"], run["losses"][0] - 1)

    def test_a_checkpoint_is_resumed_in_another_format(self):
        stopped = self.train(csd__state="fp32", train__stop_at=20)
        goes_on = self.train(csd__state="compact", flags=["--resume"])
        self.assertEqual(stopped["steps"], 20)
        self.assertEqual(goes_on["first_step"], 21)
        self.assertLess(goes_on["heldout_loss"], stopped["heldout_loss"])


if __name__ == "__main__":
    program.main()
