"""A tiny GPT learns Tiny Shakespeare: held-out loss below 2.1 nats per byte in su+o. tests/run --long trains the
network of configs/shakespeare.toml, other runs one with half the layers on rows of half the length."""

import unittest

import program

TEXT = program.SHARED_DATA / "shakespeare/input.txt"
IS_LONG = "NEARSTEP_LONG" in program.os.environ
SMALLER = {} if IS_LONG else {"model__layers": 2, "model__context": 32, "train__learning_rate": 8e-3}


@unittest.skipUnless(TEXT.exists(), f"there is no {TEXT}")
class Shakespeare(program.Scenario):
    def test_su_o_reaches_2_1_nats_per_byte(self):
        summary = self.train(config="configs/shakespeare.toml", data__train=f'"{TEXT}"', mode="su+o", **SMALLER)
        print("su+o held-out loss", summary["heldout_loss"])
        self.assertLess(summary["heldout_loss"], 2.1)

    @unittest.skipUnless(IS_LONG, "tests/run --long trains with top-k, too")
    def test_top_k_of_10_percent_learns_too(self):
        summary = self.train(
            config="configs/shakespeare.toml",
            data__train=f'"{TEXT}"',
            mode="su+o+c",
            compress__codec="topk",
            compress__keep=0.1,
        )
        print("su+o+c top-k 10 % held-out loss", summary["heldout_loss"])
        self.assertLess(summary["heldout_loss"], 2.6)
        self.assertLess(summary["losses"][-1], summary["losses"][0] - 2)


if __name__ == "__main__":
    program.main()
