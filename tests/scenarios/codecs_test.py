"""Every gradient codec trains on any number of ranks, moves the expected bytes, and resumes where it stopped."""

import json

import program

BYTES = {"dense": 2, "topk": 4 * 656 / 65536, "q8": 1.03125, "q4": 0.53125}
KEYS = {"mode": "su+o+c", "csd__durability": "checkpoint", "train__steps": 20, "csd__per_rank": 2}


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

    def test_a_run_repeats_bit_for_bit_whatever_the_devices(self):
        for rounding in ("nearest", "stochastic"):
            with self.subTest(rounding=rounding):
                keys = {**KEYS, "compress__codec": "q4", "compress__rounding": rounding}
                first = self.train(state="first", **keys)
                self.assert_same_bits(self.train(state="again", **{**keys, "csd__per_rank": 3}), first)

    def test_ranks_agree(self):
        # At the config's rate the loss jumps in step 7, and jumps differ by what rounding does.
        keys = {**KEYS, "compress__codec": "q8", "train__learning_rate": 1e-3}
        two = self.train(**keys)
        cases = [(ranks, gradients) for ranks in (1, 3, 4) for gradients in ("node", "replicated")]
        for ranks, gradients in program.sweep(cases, 0, 3, 4):
            with self.subTest(ranks=ranks, gradients=gradients):
                other = self.train(ranks=ranks, state=f"{ranks}-{gradients}", placement__gradients=gradients, **keys)
                self.assert_close(other["losses"], two["losses"], 2e-3)

    def test_error_feedback_resumes_bit_identically(self):
        for codec, dtype, gradients in (("topk", "bf16", "replicated"), ("q4", "fp16", "node")):
            with self.subTest(codec=codec):
                keys = {
                    **KEYS,
                    "compress__codec": codec,
                    "compress__error_feedback": "true",
                    "model__dtype": dtype,
                    "train__scale_growth_steps": 5,
                    "placement__gradients": gradients,
                }
                whole = self.train(state=f"whole-{codec}", **keys)
                first = self.train(state=f"parts-{codec}", train__stop_at=9, **keys)
                second = self.train(state=f"parts-{codec}", flags=["--resume"], **keys)
                self.assert_goes_on(whole, first, second)
                without = self.train(state=f"without-{codec}", **{**keys, "compress__error_feedback": "false"})
                self.assertNotEqual(without["masters_xxh3"], whole["masters_xxh3"])

    def test_error_feedback_goes_on_with_other_ranks(self):
        keys = {
            **KEYS,
            "compress__codec": "q4",
            "compress__error_feedback": "true",
            "placement__gradients": "replicated",
        }
        whole = self.train(state="whole", **keys)
        self.train(state="parts", train__stop_at=10, **keys)
        second = self.train(ranks=3, state="parts", flags=["--resume"], **keys)
        self.assertEqual(second["first_step"], 11)
        self.assertLessEqual(abs(second["heldout_loss"] - whole["heldout_loss"]), 2e-2)

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


if __name__ == "__main__":
    program.main()
