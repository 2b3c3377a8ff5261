"""The snippet in docs/training.md loads an export into PyTorch, and the loaded model gives the reported loss."""

import json
import multiprocessing
import re
import subprocess
import sys
import unittest

import program

try:
    import h5py  # noqa: F401
    import torch
except ImportError:
    torch = None


def gpt_loss(state, tokens, targets, heads):
    """Mean cross entropy of GPT-2, computed as in its paper's code; tokens and targets: [rows, columns]."""
    functional = torch.nn.functional
    columns = tokens.shape[1]
    x = state["wte.weight"][tokens] + state["wpe.weight"][:columns]
    width = x.shape[-1]
    norm = lambda x, name: functional.layer_norm(x, (width,), state[name + ".weight"], state[name + ".bias"])
    linear = lambda x, name: x @ state[name + ".weight"] + state[name + ".bias"]
    layers = len({name.split(".")[1] for name in state if name.startswith("h.")})
    for layer in range(layers):
        p = f"h.{layer}."
        q, k, v = (
            part.view(*x.shape[:2], heads, -1).transpose(1, 2)
            for part in linear(norm(x, p + "ln_1"), p + "attn.c_attn").split(width, dim=-1)
        )
        scores = (q @ k.transpose(-1, -2)) / (width // heads) ** 0.5
        scores = scores.masked_fill(torch.ones(columns, columns).triu(1).bool(), float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + linear(mixed, p + "attn.c_proj")
        hidden = functional.gelu(linear(norm(x, p + "ln_2"), p + "mlp.c_fc"), approximate="tanh")
        x = x + linear(hidden, p + "mlp.c_proj")
    logits = norm(x, "ln_f") @ state["wte.weight"].T
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def sum_of(path, name):
    with h5py.File(path) as file:
        return float(file[name][...].sum())


@unittest.skipUnless(torch, "h5py or torch cannot be imported")
class Export(program.Scenario):
    def exported(self, *flags, **keys):
        index = self.train(train__steps=20, **keys)
        path = self.folder / "model.h5"
        program.succeed(0, "export", index["checkpoint"], path, *flags)
        self.assertEqual(program.run(0, "inspect", path).returncode, 0)
        return index, path

    def test_the_snippet_of_the_docs_loads_it(self):
        _, path = self.exported()
        snippets = re.findall(r"```python\n(.*?)```", (program.ROOT / "docs/training.md").read_text(), re.S)
        (snippet,) = [one for one in snippets if "runs/quickstart/model.h5" in one]
        self.assertLessEqual(len(snippet.splitlines()), 20)
        done = subprocess.run(
            [sys.executable, "-c", snippet.replace("runs/quickstart/model.h5", str(path))],
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step 20 of gpt layers=2", done.stdout)
        self.assertIn("torch.float32", done.stdout)

    def test_the_model_it_holds_gives_the_reported_loss(self):
        context = 96
        summary, path = self.exported(model__dtype="fp32", model__context=context, data__valid=f'"{self.text}"')
        with h5py.File(path) as file:
            state = {name: torch.from_numpy(data[...]) for name, data in file.items()}
        self.assertEqual(sum(t.numel() for t in state.values()), summary["parameters"])
        text = torch.frombuffer(bytearray(self.text.read_bytes()), dtype=torch.uint8).long()
        rows = 4 * 2  # train.evaluate_batches x train.micro_batch of configs/tiny.toml
        starts = program.evaluation_starts(len(text), rows, context)
        tokens = torch.stack([text[s : s + context] for s in starts])
        targets = torch.stack([text[s + 1 : s + 1 + context] for s in starts])
        self.assertAlmostEqual(gpt_loss(state, tokens, targets, heads=2).item(), summary["heldout_loss"], delta=1e-4)

    def test_ranks_write_one_export_at_once(self):
        index, path = self.exported()
        together = self.folder / "together"
        together.mkdir()
        program.succeed(2, "export", index["checkpoint"], together / "model.h5", "--moments")
        self.assertEqual(program.run(0, "inspect", together / "model.h5").returncode, 0)
        self.assertEqual(json.loads((together / "config.json").read_text())["model_type"], "gpt2")
        with h5py.File(path) as one, h5py.File(together / "model.h5") as file:
            names = set(one)
            self.assertEqual(set(file), names | {"moment1", "moment2"})
            for name in names:
                self.assertTrue((one[name][...] == file[name][...]).all(), name)
            self.assertEqual(set(file["moment2"]), names)
            self.assertTrue((file["moment2/wte.weight"][...] >= 0).all())
            self.assertGreater(file["moment2/wte.weight"][...].sum(), 0)
            self.assertEqual(list(file["wte.weight"].attrs["ties"]), ["lm_head.weight"])
            self.assertEqual(file["h.0.attn.c_attn.weight"].attrs["layout"], "input, output")
        with multiprocessing.Pool(2) as readers:
            sums = readers.starmap(sum_of, [(str(together / "model.h5"), name) for name in sorted(names)])
        with h5py.File(path) as one:
            self.assertEqual(sums, [float(one[name][...].sum()) for name in sorted(names)])
        for ranks in (0, 2):
            folder = self.folder / f"shards-{ranks}"
            program.succeed(
                ranks, "export", index["checkpoint"], folder, "--format", "safetensors", "--shard-gb", "1e-4"
            )
        shards = sorted(file.name for file in (self.folder / "shards-0").iterdir())
        self.assertGreater(len(shards), 4)
        for name in shards:
            self.assertEqual(
                (self.folder / "shards-0" / name).read_bytes(), (self.folder / "shards-2" / name).read_bytes(), name
            )

    def test_half_precision_is_half_as_large_and_close(self):
        _, path = self.exported("--dtype", "f16")
        with h5py.File(path) as file:
            self.assertEqual(str(file["wte.weight"].dtype), "float16")


if __name__ == "__main__":
    program.main()
