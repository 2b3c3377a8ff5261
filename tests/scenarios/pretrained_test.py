"""Exchanges weights with Hugging Face's transformers: safetensors out and in, on any number of ranks."""

import importlib.util
import shutil
import unittest

import program

NEEDED = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
# The rate is so small that it changes no bit of a master: after a step they equal what was read.
STILL = {"train__learning_rate": 1e-30, "train__weight_decay": 0, "train__warmup_steps": 0, "train__steps": 1}
SMALL = {"train__global_batch": 2, "train__evaluate_batches": 2, "csd__subgroup_tiles": 1}


@unittest.skipIf(NEEDED, f"{', '.join(NEEDED)} cannot be imported")
class Pretrained(program.Scenario):
    def export(self, summary, name, *flags):
        folder = self.folder / name
        done = program.run_in_turn(1, "export", summary["checkpoint"], folder, "--format", "safetensors", *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder

    def tensors(self, folder):
        import safetensors.torch

        out = {}
        for file in folder.glob("*.safetensors"):
            out.update(safetensors.torch.load_file(file))
        return out

    def load(self, folder):
        """Loads the model and checks that no tensor is missing or left over."""
        import transformers

        model, about = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(about[kind], kind)
        return model

    def refused(self, folder, *words, **keys):
        state = self.folder / "refused"
        done = program.run_in_turn(2, *self.arguments(state="refused", model__from=f'"{folder}"', **keys))
        self.assert_refusal(done, *words)
        self.assertEqual(done.stderr.count("nearstep: "), 1, done.stderr)
        self.assertFalse(any(state.rglob("*.nearstep")), "state was written")

    def test_transformers_loads_an_export_and_computes_the_reported_loss(self):
        import torch

        summary = self.train(train__steps=20, model__dtype="fp32", data__valid=f'"{self.text}"')
        model = self.load(self.export(summary, "whole"))
        text = torch.tensor(list(self.text.read_bytes()))
        context = model.config.n_positions
        starts = program.evaluation_starts(
            len(text), 4 * 2, context
        )  # evaluate_batches x micro_batch of configs/tiny.toml
        with torch.no_grad():
            logits = model(torch.stack([text[s : s + context] for s in starts])).logits
        targets = torch.stack([text[s + 1 : s + 1 + context] for s in starts])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
        self.assertAlmostEqual(loss, summary["heldout_loss"], delta=1e-4)

    def test_shards_and_formats_hold_the_same_values(self):
        import torch

        summary = self.train(train__steps=3)
        whole = self.tensors(self.export(summary, "whole"))
        shards = self.export(summary, "shards", "--shard-gb", "0.0005")
        self.assertGreater(len(list(shards.glob("model-0000?-of-0000?.safetensors"))), 2)
        self.load(shards)
        in_shards = self.tensors(shards)
        self.assertEqual(sorted(in_shards), sorted(whole))
        halves = self.tensors(self.export(summary, "bf16", "--dtype", "bf16"))
        for name, value in whole.items():
            self.assertTrue(torch.equal(value, in_shards[name]), name)
            self.assertTrue(torch.equal(value.bfloat16(), halves[name]), name)
        again = program.run_in_turn(1, "export", summary["checkpoint"], shards, "--format", "safetensors")
        self.assert_refusal(again, shards)

    def test_a_run_begins_with_what_was_exported_and_goes_on_without_it(self):
        first = self.train(train__steps=5)
        folder = self.export(first, "model", "--shard-gb", "0.0005")
        for ranks in (1, 3):
            with self.subTest(ranks=ranks):
                again = self.train(ranks=ranks, state=f"state-{ranks}", model__from=f'"{folder}"', **STILL)
                self.assertEqual(again["masters_xxh3"], first["masters_xxh3"])
        keys = {"model__from": f'"{folder}"', "train__steps": 6}
        whole = self.train(state="whole", **keys)
        self.train(state="parts", train__stop_at=3, **keys)
        shutil.rmtree(folder)
        rest = self.train(state="parts", flags=["--resume"], **keys)
        self.assertEqual(rest["masters_xxh3"], whole["masters_xxh3"])

    def llama(self, kind="Llama", **keys):
        """A random model of transformers."""
        import torch
        import transformers

        torch.manual_seed(1)
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 300,
            "max_position_embeddings": 32,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        config = getattr(transformers, kind + "Config")(**{**sizes, **keys})
        model = getattr(transformers, kind + "ForCausalLM")(config)
        with torch.no_grad():
            for name, value in model.named_parameters():
                if "norm" in name or "bias" in name:
                    value.add_(0.1 * torch.randn_like(value))
        return model.eval()

    def gpt2(self):
        import torch
        import transformers

        torch.manual_seed(1)
        config = transformers.GPT2Config(
            n_layer=2, n_head=2, n_embd=64, n_positions=32, vocab_size=256, bos_token_id=0, eos_token_id=0
        )
        return transformers.GPT2LMHeadModel(config).eval()

    def test_logits_are_those_of_transformers(self):
        import torch

        yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
        llama3 = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
        models = {
            "gpt2": self.gpt2(),
            "llama": self.llama(rms_norm_eps=1e-5),
            "tied": self.llama(tie_word_embeddings=True, num_key_value_heads=1),
            "theta": self.llama(rope_theta=500.0, num_key_value_heads=4),
            "linear": self.llama(rope_scaling={"rope_type": "linear", "factor": 4.0}),
            "dynamic": self.llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=8),
            "llama3": self.llama(rope_scaling=llama3),
            "yarn": self.llama(rope_scaling=yarn),
            "qwen2": self.llama("Qwen2", tie_word_embeddings=True),
        }
        for name, model in models.items():
            model.save_pretrained(self.folder / name)
        columns = 24
        for dtype in ("fp32", "bf16"):
            program.run_logits(dtype, columns, *(self.folder / name for name in models))
        index = torch.arange(2 * columns).view(2, columns)
        for name, model in models.items():
            tokens = (7 * index * index + 3 * index) % model.config.vocab_size
            with self.subTest(model=name), torch.no_grad():

                def ours(dtype):
                    return torch.frombuffer(
                        bytearray((self.folder / name / f"logits.{dtype}").read_bytes()), dtype=torch.float32
                    ).view_as(exact)

                exact = model(tokens).logits
                self.assertGreater(exact.abs().max(), 0.3)
                self.assertLess((ours("fp32") - exact).abs().max(), 1e-5)
                # bf16 has 8 bits, so a logit of 1 is off by up to 2e-3; transformers' own bf16 logits are off by 8e-4
                # on average.
                for value in model.parameters():
                    value.copy_(value.bfloat16())
                exact = model(tokens).logits
                self.assertLess((ours("bf16") - exact).square().mean().sqrt(), 1e-3)
                self.assertLess((ours("bf16") - exact).abs().max(), 8e-3)

    def test_a_run_begins_with_a_model_of_transformers_and_exports_it_whole(self):
        import torch
        import transformers

        llama3 = {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
        models = {
            "gpt2": self.gpt2(),
            "llama": self.llama(rope_scaling=llama3, rms_norm_eps=1e-5),
            "qwen2": self.llama("Qwen2", tie_word_embeddings=True),
        }
        tokens = torch.arange(24).view(2, 12) % 256
        for name, model in models.items():
            with self.subTest(model=name), torch.no_grad():
                folder = self.folder / name
                model.to(torch.bfloat16).save_pretrained(folder)
                summary = self.train(
                    config="configs/pretrained.toml",
                    state=f"{name}-state",
                    model__from=f'"{folder}"',
                    model__dtype="fp32",
                    **SMALL,
                    **STILL,
                )
                ours = self.load(self.export(summary, f"{name}-ours"))
                for key, value in model.state_dict().items():
                    self.assertLess((value.float() - ours.state_dict()[key]).abs().max(), 1e-29, key)  # zeros move
                self.assertEqual(type(ours), type(model))
                theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
                self.assertLess((ours(tokens).logits - theirs(tokens).logits).abs().max(), 1e-5)

    def test_token_ids_and_generation_go_through_checkpoint_and_resume(self):
        model = self.llama(bos_token_id=7, eos_token_id=[9, 11], pad_token_id=5)
        model.generation_config.eos_token_id, model.generation_config.max_length = [12, 13], 17
        folder = self.folder / "model"
        model.save_pretrained(folder)
        keys = {"config": "configs/pretrained.toml", "model__from": f'"{folder}"', "train__steps": 2, **SMALL}
        self.train(train__stop_at=1, **keys)
        ours = self.export(self.train(flags=["--resume"], **keys), "ours")
        theirs = self.load(ours)
        self.assertEqual(
            [theirs.config.bos_token_id, theirs.config.eos_token_id, theirs.config.pad_token_id], [7, [9, 11], 5]
        )
        self.assertEqual([theirs.generation_config.eos_token_id, theirs.generation_config.max_length], [[12, 13], 17])
        (folder / "generation_config.json").unlink()
        again = self.export(self.train(state="without", **keys), "exported")
        self.assertFalse((again / "generation_config.json").exists())

    def test_a_published_model_that_does_not_fit_is_refused(self):
        folder = self.folder / "theirs"
        self.llama().save_pretrained(folder)
        small = {"config": "configs/pretrained.toml", **SMALL}
        self.refused(folder, "model.layers = 3", "config.json says 2", model__layers=3, **small)
        self.refused(folder, 'model.architecture = "gpt"', 'says "llama"', model__architecture="gpt", **small)
        weights = folder / "model.safetensors"
        sizes = {
            "model__architecture": "llama",
            "model__layers": 2,
            "model__heads": 4,
            "model__kv_heads": 2,
            "model__width": 64,
            "model__hidden": 96,
            "model__context": 32,
            "model__vocabulary": 300,
            "model__tied": "false",
        }
        self.refused(
            weights, "has no tensor model.layers.2.input_layernorm.weight", **{**small, **sizes, "model__layers": 3}
        )
        self.refused(weights, "k_proj.weight", "32 x 64", "64 x 64", **{**small, **sizes, "model__kv_heads": 4})
        self.refused(self.folder / "nothing", "nothing cannot be opened", **small)
        (folder / "config.json").unlink()
        self.refused(folder, "config.json cannot be opened", **small)


if __name__ == "__main__":
    program.main()
