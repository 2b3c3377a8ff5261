"""Every state format and optimizer trains, with the same bits on every layout, and resumes like an uninterrupted
run."""

import program

FORMATS = ("fp32", "bf16", "q8", "compact")
# In nats, of the loss after 40 steps against fp32 state. Formats and modes differ only by rounding.
TOLERANCE = 0.03


class Formats(program.Scenario):
    def test_every_mode_and_device_count_gives_the_same_bits(self):
        for state in FORMATS:
            one = self.train(mode="su", csd__state=state, csd__per_rank=1, train__steps=8)
            for keys in program.sweep(
                (
                    {"mode": "su+o", "csd__per_rank": 3},
                    {"mode": "base", "csd__per_rank": 2},
                    {"mode": "su+o", "csd__per_rank": "[2,0]", "csd__subgroup_tiles": 3},
                ),
                1,
                2,
            ):
                with self.subTest(state=state, **keys):
                    self.assert_same_bits(self.train(csd__state=state, train__steps=8, **keys), one)

    def test_the_loss_is_that_of_fp32_state(self):
        runs = {state: self.train(csd__state=state) for state in FORMATS}
        self.assertEqual(len({run["masters_xxh3"] for run in runs.values()}), len(FORMATS))
        for state, run in runs.items():
            with self.subTest(state=state):
                self.assertEqual(run["steps"], 40)
                self.assertLessEqual(abs(run["heldout_loss"] - runs["fp32"]["heldout_loss"]), TOLERANCE)
                self.assertLess(run["heldout_loss"], run["losses"][0] - 1)

    def test_every_format_resumes_bit_identically(self):
        for state in program.sweep(FORMATS, 2, 3):
            with self.subTest(state=state):
                keys = {"csd__state": state, "csd__per_rank": 2, "train__steps": 12}
                whole = self.train(state=f"whole-{state}", **keys)
                first = self.train(state=f"parts-{state}", train__stop_at=6, **keys)
                second = self.train(state=f"parts-{state}", flags=["--resume"], **{**keys, "csd__per_rank": 1})
                self.assert_goes_on(whole, first, second)

    def test_a_checkpoint_is_resumed_in_another_format(self):
        stopped = self.train(csd__state="fp32", train__stop_at=20)
        goes_on = self.train(csd__state="compact", flags=["--resume"])
        self.assertEqual(stopped["steps"], 20)
        self.assertEqual(goes_on["first_step"], 21)
        self.assertLess(goes_on["heldout_loss"], stopped["heldout_loss"])


class Optimizers(program.Scenario):
    def test_every_optimizer_learns_and_gives_the_same_bits_in_every_mode(self):
        for optimizer, rate in (("adamw", 2e-3), ("adam", 2e-3), ("sgd", 0.1), ("adagrad", 1e-2), ("lion", 5e-4)):
            keys = {"train__optimizer": optimizer, "train__learning_rate": rate, "csd__state": "q8", "train__steps": 20}
            runs = [
                self.train(mode=mode, csd__per_rank=2, **keys) for mode in program.sweep(("su", "su+o", "base"), 1, 2)
            ]
            with self.subTest(optimizer=optimizer):
                for other in runs[1:]:
                    self.assert_same_bits(other, runs[0])
                self.assertLess(runs[0]["heldout_loss"], runs[0]["losses"][0] - 0.5)


if __name__ == "__main__":
    program.main()
