"""Gradients that are encoded on a GPU train as those that the host encodes; skipped where there is no GPU."""
import unittest

import program


class Gpu(program.Scenario):
    @classmethod
    def setUpClass(cls):
        found = program.run(0, "doctor").stdout
        if "PyTorch finds 0" in found:
            raise unittest.SkipTest("PyTorch finds no GPU here")

    def train_encoded(self, where, **keys):
        summary = self.train(state=where, model__device='"cuda"', compress__where=where, **keys)
        self.assertEqual(summary["compress"]["where"], "gpu" if where == "auto" else "host")
        return summary

    def assert_same_bits_wherever_encoded(self, **keys):
        self.assert_same_bits(self.train_encoded("auto", **keys), self.train_encoded("host", **keys))

    def test_topk_after_a_dense_warm_up(self):
        self.assert_same_bits_wherever_encoded(ranks=1, train__steps=6, csd__per_rank=2, mode="su+o+c",
                                               compress__codec="topk", compress__warmup_steps=2)

    def test_stochastic_codes_of_two_ranks(self):
        self.assert_same_bits_wherever_encoded(ranks=2, train__steps=6, mode="su+o+c", compress__codec="q4",
                                               compress__rounding="stochastic", exchange__scatter="flat")

    def test_a_rank_whose_gradient_is_added_to_others_encodes_on_the_host(self):
        summary = self.train(ranks=2, train__steps=2, model__device='"cuda"', compress__where="auto")
        self.assertEqual(summary["compress"]["where"], "host")


if __name__ == "__main__":
    program.main()
