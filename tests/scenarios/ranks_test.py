"""Ranks begin with the same settings; and a network whose vocabulary is larger than all else."""

import math

import program


class Ranks(program.Scenario):
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


if __name__ == "__main__":
    program.main()
