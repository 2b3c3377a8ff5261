"""Programs of others that PyTorch starts, as examples/ shows them: they train as with torch.optim.AdamW, and go on
after a kill to the same bits, on two ranks, and on one."""

import launcher

launcher.need("transformers", "accelerate", "datasets", "trl", "lightning")
STEPS = 5
PROGRAMS = (
    "fsdp_trainer.py Trainer",
    "fsdp_trainer.py SFTTrainer --ddp",
    "fsdp_trainer.py GRPOTrainer",
    "fsdp_accelerate.py",
    "fsdp_lightning.py",
    "fsdp_lightning.py --ddp",
    "../tests/python/axolotl_stand_in.py",
)
# Changes of the example for a Trainer's own checkpoints; the optimizer reaches each Trainer in the other way.
CHECKPOINTS = (
    ('"save_strategy": "no"', '"save_steps": 3'),
    ('"callbacks": [GoesOn()]', '"callbacks": []'),
    ('f"{folder}/state"', 'f"{folder}/state-" + os.environ["WORLD_SIZE"]'),
    ("trainer.train()", 'trainer.train(resume_from_checkpoint=os.path.exists(f"{folder}/trainer/checkpoint-3"))'),
    (
        "trainer.optimizer_cls_and_kwargs = (lambda: make_optimizer, {})",
        "transformers.Trainer.get_optimizer_cls_and_kwargs = staticmethod(lambda *_: (lambda: make_optimizer, {}))",
    ),
)


class Programs(launcher.FolderTest):
    def test_they_train_as_in_memory_and_go_on_after_a_kill(self):
        text = (launcher.HERE.parents[1] / "examples/fsdp_trainer.py").read_text()
        for words, others in CHECKPOINTS:
            self.assertIn(words, text)
            text = text.replace(words, others)
        (self.folder / "checkpoints.py").write_text(text)
        programs = (*PROGRAMS, f"{self.folder}/checkpoints.py Trainer")
        worker = launcher.Process(
            1, "programs_worker.py", self.folder / "runs", STEPS, *programs, "fsdp_titan.py", TORCHDYNAMO_DISABLE="1"
        )
        code = worker.wait()
        text = worker.text()
        self.assertEqual(code, 0, text[-6000:])
        found = [line.split(maxsplit=6)[1:] for line in text.splitlines() if line.startswith("found ")]
        self.assertEqual([row[-1] for row in found], list(programs), text[-6000:])
        [meshes] = [line.split()[1:] for line in text.splitlines() if line.startswith("meshes ")]
        worst, taken, of_checkpoint, taken_from_checkpoint = map(float, meshes)
        self.assertLess(max(worst, of_checkpoint), 1e-5)
        self.assertIn(taken, (2, 3), "steps after the kill")
        self.assertEqual(taken_from_checkpoint, STEPS - 2)
        for worst, is_same, taken, worst_alone, taken_alone, program in found:
            with self.subTest(program=program):
                self.assertLess(float(worst), 1e-5)
                self.assertEqual((taken, taken_alone), ("2", "2"), "steps after the second start")
                self.assertEqual(is_same, "True")
                if "GRPO" not in program:  # one rank draws other completions than two
                    self.assertLess(float(worst_alone), 1e-5)


if __name__ == "__main__":
    launcher.start_forks(
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint.state_dict",
        "accelerate",
        "lightning",
        "datasets",
        "transformers.trainer",
        "transformers.models.llama.modeling_llama",
        "transformers.models.gpt2.modeling_gpt2",
        "trl.trainer.sft_trainer",
        "trl.trainer.grpo_trainer",
        launcher.COMPILER,
    )
    launcher.main()
