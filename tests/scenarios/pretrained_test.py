"""Exchanges weights with Hugging Face's transformers: safetensors out and in, on any number of ranks."""
import importlib.util
import json
import shutil
import unittest

import program

NEEDED = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
# The rate is so small that it changes no bit of a master: after a step they equal what was read.
STILL = {"train__learning_rate": 1e-30, "train__weight_decay": 0, "train__warmup_steps": 0, "train__steps": 1}


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
        self.assertEqual(done.returncode, 2, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertEqual(done.stderr.count("nearstep: "), 1, done.stderr)
        self.assertFalse(any(state.rglob("*.nearstep")), "state was written")

    def test_transformers_loads_an_export_and_computes_the_reported_loss(self):
        import torch

        summary = self.train(train__steps=20, model__dtype="fp32", data__valid=f'"{self.text}"')
        model = self.load(self.export(summary, "whole"))
        text = torch.tensor(list(self.text.read_bytes()))
        context = model.config.n_positions
        starts = program.evaluation_starts(len(text), 4 * 2, context)  # evaluate_batches x micro_batch of configs/tiny.toml
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
        self.assertEqual(again.returncode, 2)
        self.assertIn("Name a new folder", again.stderr)

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

    def test_a_run_begins_with_a_model_of_transformers(self):
        import torch
        import transformers

        torch.manual_seed(1)
        config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=64, n_positions=32, vocab_size=256, bos_token_id=0, eos_token_id=0)
        sizes = {"model__layers": 2, "model__heads": 2, "model__width": 64, "model__context": 32, "model__vocabulary": 256}
        model = transformers.GPT2LMHeadModel(config)
        folder = self.folder / "theirs"
        model.to(torch.bfloat16).save_pretrained(folder)
        summary = self.train(model__from=f'"{folder}"', **sizes, **STILL)
        ours = self.load(self.export(summary, "ours")).state_dict()
        for name, value in model.state_dict().items():
            self.assertLess((value.float() - ours[name]).abs().max(), 1e-29, name)  # zeros move
        # A larger model, one of another width, and none at all.
        self.refused(folder, "has no tensor h.2.ln_1.weight", "model.layers", **{**sizes, "model__layers": 3})
        self.refused(folder, "wte.weight", "256 x 64", "256 x 128", "config.json", **{**sizes, "model__width": 128})
        self.refused(self.folder / "nothing", "nothing cannot be opened", **sizes)

    def test_a_shard_that_is_missing_or_short_is_refused(self):
        summary = self.train(train__steps=1)
        folder = self.export(summary, "model", "--shard-gb", "0.0005")
        shard = sorted(folder.glob("model-*.safetensors"))[1]
        content = shard.read_bytes()
        shard.write_bytes(content[:-8])
        self.refused(folder, shard.name, "lies outside of the file")
        shard.unlink()
        self.refused(folder, shard.name, "cannot be opened")
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": {"wte.weight": "../secret.safetensors"}}))
        self.refused(folder, "no plain file name")


if __name__ == "__main__":
    program.main()
