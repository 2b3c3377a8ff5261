"""Any number of ranks and devices trains the same model."""

import math
import shutil

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
                self.assert_same_bits(
                    self.train(ranks=ranks, train__steps=10), self.train(ranks=ranks, train__steps=10)
                )

    def test_any_devices_per_rank_give_the_same_bits(self):
        one = self.train(csd__per_rank=1, train__steps=10)
        for devices in ("2", "5", "[2,1]", "[3,0]"):
            with self.subTest(devices=devices):
                self.assert_same_bits(self.train(csd__per_rank=devices, train__steps=10), one)
        self.assert_same_bits(self.train(csd__per_rank=2, csd__speed="[1.8,3.0,1.0,2.2]", train__steps=10), one)

    def test_measured_speeds_and_state_in_memory_give_the_same_bits(self):
        one = self.train(csd__per_rank=1, train__steps=10)
        self.addCleanup(shutil.rmtree, f"/dev/shm/{self.folder.name}", ignore_errors=True)
        drives = f'["{self.folder / "disk"}","/dev/shm/{self.folder.name}"]'
        self.assert_same_bits(self.train(csd__path=drives, csd__speed='"auto"', train__steps=10), one)

    def test_micro_batches_add_up_to_the_same_gradient(self):
        whole = self.train(ranks=1, model__dtype="fp32", train__micro_batch=8, train__steps=10)
        parts = self.train(ranks=1, model__dtype="fp32", train__micro_batch=3, train__steps=10)
        self.assert_close(parts["losses"], whole["losses"], 1e-4)

    def test_a_llama_with_a_large_vocabulary(self):
        sizes = {
            "model__layers": 1,
            "model__width": 16,
            "model__heads": 2,
            "model__kv_heads": 1,
            "model__hidden": 16,
            "model__context": 16,
            "model__vocabulary": 151936,
        }
        for tied in ("true", "false"):
            with self.subTest(tied=tied):
                summary = self.train(
                    config="configs/llama-small.toml",
                    model__tied=tied,
                    train__steps=4,
                    train__warmup_steps=0,
                    train__learning_rate=2e-2,
                    train__global_batch=2,
                    train__micro_batch=1,
                    train__evaluate_batches=2,
                    **sizes,
                )
                self.assertAlmostEqual(summary["losses"][0], math.log(151936), delta=0.05)
                self.assertLess(summary["losses"][-1], summary["losses"][0])

    def run_with_another_command_line(self, added, **settings):
        """Two ranks, of which the second has these options, too."""
        text = f'[[ $OMPI_COMM_WORLD_RANK == 1 ]] && set -- "$@" {added}\nexec {program.PROGRAM} "$@"'
        wrapper = program.make_script(self.folder / "program", text)
        return program.call("launch/ranks", 2, wrapper, *self.arguments(**settings))

    def test_ranks_with_different_settings_are_refused_before_anything_is_made(self):
        for option, name in (
            ("--set train.seed=2 --set csd.state=bf16", "train.seed is 1 on rank 0 and 2 on rank 1; csd.state is"),
            ("--set train.seed=none", "train.seed"),
            ("--fresh", "what to begin with"),
        ):
            with self.subTest(option=option):
                done = self.run_with_another_command_line(option, train__steps=2)
                self.assert_refusal(done, name)
                self.assertFalse((self.folder / "state").exists())

    def test_what_a_host_has_may_differ(self):
        own = f"--set csd.slots=5 --set csd.io=threads --set csd.path={self.folder}/other"
        done = self.run_with_another_command_line(own, train__steps=2, checkpoint__path=self.folder / "checkpoints")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.folder / "other/rank-1.manifest").exists())

    def test_fp16_skips_steps_whose_gradient_overflows_and_learns_on(self):
        summary = self.train(model__dtype="fp16", train__loss_scale=4e9, train__steps=40)
        self.assertGreater(summary["skipped_steps"], 0)
        self.assertLess(summary["skipped_steps"], 30)
        self.assertLess(summary["losses"][-1], summary["losses"][0])


if __name__ == "__main__":
    program.main()
