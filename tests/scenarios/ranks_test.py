"""Any number of ranks and devices trains the same model."""
import program


class Ranks(program.Scenario):
    def test_one_to_four_ranks_give_the_same_losses_in_fp32(self):
        one = self.train(ranks=1, model__dtype="fp32", train__steps=20)
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                summary = self.train(ranks=ranks, model__dtype="fp32", train__steps=20)
                self.assertEqual(summary["ranks"], ranks)
                self.assert_close(summary["losses"], one["losses"], 1e-4)

    def test_a_run_repeats_bit_for_bit(self):
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                self.assert_same_bits(self.train(ranks=ranks, train__steps=10), self.train(ranks=ranks, train__steps=10))

    def test_any_devices_per_rank_give_the_same_bits(self):
        one = self.train(csd__per_rank=1, train__steps=10)
        for devices in ("2", "5", "[2,1]", "[3,0]"):
            with self.subTest(devices=devices):
                self.assert_same_bits(self.train(csd__per_rank=devices, train__steps=10), one)
        self.assert_same_bits(self.train(csd__per_rank=2, csd__speed="[1.8,3.0,1.0,2.2]", train__steps=10), one)

    def test_micro_batches_add_up_to_the_same_gradient(self):
        whole = self.train(ranks=1, model__dtype="fp32", train__micro_batch=8, train__steps=10)
        parts = self.train(ranks=1, model__dtype="fp32", train__micro_batch=3, train__steps=10)
        self.assert_close(parts["losses"], whole["losses"], 1e-4)

    def test_fp16_skips_steps_whose_gradient_overflows_and_learns_on(self):
        summary = self.train(model__dtype="fp16", train__loss_scale=4e9, train__steps=40)
        self.assertGreater(summary["skipped_steps"], 0)
        self.assertLess(summary["skipped_steps"], 30)
        self.assertLess(summary["losses"][-1], summary["losses"][0])


if __name__ == "__main__":
    program.main()
