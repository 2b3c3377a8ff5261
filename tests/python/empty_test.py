"""Models made in nearstep.empty(): their weights, buffers and memory, and what is refused. One process, one rank."""

import copy
import json
import pickle
import shutil
import subprocess
import sys
import time
import types
import unittest.mock

import launcher
from package import Package

launcher.need("transformers", "peft")

import peft
import torch

import nearstep
import networks
from nearstep._starting import waiting


# Prints the most anonymous memory while a model of 30 million parameters in bf16 starts from a file, in MB.
MEASURED = """
import pathlib, sys, threading, time, torch, nearstep
def own():
    lines = [line for line in open("/proc/self/status") if line.startswith(("RssAnon", "RssShmem"))]
    return sum(int(line.split()[1]) for line in lines) / 1024
def layers(count):
    return torch.nn.Sequential(*(torch.nn.Linear(1000, 1000, bias=False) for _ in range(count))).to(torch.bfloat16)
def begin(count):
    with nearstep.empty():
        model = layers(count)
    opt = nearstep.AdamW(model, path=pathlib.Path(sys.argv[1]) / str(count), weights=sys.argv[2], state="compact",
                         codec="q4", config={"csd.subgroup_tiles": 2, "csd.slots": 4})
    opt.resume()
    return opt
begin(1).close()
before, most, is_over = own(), 0, False
def watch():
    global most
    while not is_over:
        most = max(most, own())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
opt = begin(30)
is_over = True
thread.join()
print(most - before); opt.close()
"""


class Reset(torch.nn.Module):
    """A parameter that nothing initialises."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(8))


class Empty(Package):
    def saved(self, name, dtype=None, **settings):
        """A model with start values, and the folder of safetensors that it was loaded from."""
        dtype = dtype or torch.float32
        folder = self.folder / f"weights-{name}"
        networks.make(name).to(dtype).save_pretrained(folder, **settings)
        return type(networks.make(name)).from_pretrained(folder, dtype=dtype), folder

    def empty(self, model, dtype=None):
        """Returns the same model without memory."""
        with nearstep.empty():
            made = type(model)._from_config(model.config, dtype=dtype or torch.float32)
        self.assertEqual({p.untyped_storage().nbytes() // p.element_size() for p in made.parameters()}, {1})
        return made

    def steps(self, name, model, opt, count=3, first=0):
        return [
            networks.descend(model(**networks.inputs(name, 2, torch.Generator().manual_seed(step))).loss, opt)
            for step in range(first, first + count)
        ]

    def trained(self, name, model, path, **settings):
        """Losses and digest of a run that ends, with its optimizer closed."""
        _, opt = self.make(nearstep.groups(model), path=self.folder / path, config={}, **settings)
        losses = self.steps(name, model, opt)
        digest = opt.masters_digest()
        opt.close()
        return losses, digest

    def test_weights_of_a_folder_train_to_the_same_bits(self):
        """One file with a tied head, and shards with rotary buffers, in three formats."""
        for name, dtype, settings in (
            ("gpt2", torch.float32, {}),
            ("llama", torch.bfloat16, {"max_shard_size": "100KB"}),
            ("bert", torch.float32, {}),
        ):
            with self.subTest(name):
                model, folder = self.saved(name, dtype, **settings)
                self.assertEqual((folder / "model.safetensors.index.json").exists(), "max_shard_size" in settings)
                made = self.empty(model, dtype)
                self.assert_equal_tensors(made.named_buffers(), model.named_buffers())
                self.assertEqual(
                    self.trained(name, made, f"empty-{name}", weights=folder), self.trained(name, model, f"full-{name}")
                )
                self.assert_equal_tensors(made.state_dict(), model.state_dict())
        self.assertIs(made.get_output_embeddings().weight, made.get_input_embeddings().weight)

    def resumed(self, made, folder, path):
        """Returns the lines about the folder that a start from it prints."""
        _, opt = self.make(nearstep.groups(made), path=self.folder / path, weights=folder)
        return [line for line in self.said_by(opt.resume).splitlines() if "tensors in" in line]

    def test_experts_that_files_have_apart_and_the_model_in_one_tensor(self):
        """Transformers 5 writes such files. With more than ten experts, the order by name is not that by number."""
        for name, dtype in (("mixtral", torch.float32), ("qwen2_moe", torch.bfloat16)):
            with self.subTest(name):
                model, folder = self.saved(name, dtype, max_shard_size="100KB")
                stored = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
                self.assertFalse(
                    set(dict(model.named_parameters())) <= set(stored), "these files have the model's own tensors"
                )
                made = self.empty(model, dtype)
                self.assertEqual(self.resumed(made, folder, f"empty-{name}"), [])
                self.assert_equal_tensors(made.named_parameters(), model.named_parameters())
        adapted = peft.get_peft_model(self.empty(model, dtype), peft.LoraConfig(r=4, target_modules=["q_proj"]))
        self.assertEqual(self.resumed(adapted, folder, "lora"), [])
        base = {
            key.removeprefix("base_model.model.").replace(".base_layer.", "."): p
            for key, p in adapted.named_parameters()
            if "lora_" not in key
        }
        self.assert_equal_tensors(base, model.named_parameters())

    def test_experts_that_do_not_fit_are_refused(self):
        import safetensors.torch

        model, folder = self.saved("mixtral")
        file = folder / "model.safetensors"
        whole = safetensors.torch.load_file(file)
        name = next(key for key in whole if ".experts.5.w2." in key)
        without = {key: one for key, one in whole.items() if key != name}
        for stated, changed in (
            (("11 x 64 x 128", "12 x 64 x 128"), without),
            ("model.layers.0.mlp.experts.down_proj", {**without, name: torch.zeros(3, 5)}),
        ):
            safetensors.torch.save_file(changed, file)
            self.refuses(ValueError, stated, lambda: self.resumed(self.empty(model), folder, "state"))
        self.assertFalse((self.folder / "state").exists())

    def test_tensors_without_a_place_are_listed(self):
        import safetensors.torch

        model, folder = self.saved("llama")
        file = folder / "model.safetensors"
        whole = safetensors.torch.load_file(file)
        whole.update(
            {
                "model.layers.0.self_attn.q_proj.bias": torch.zeros(64),
                "model.layers.2.mlp.up_proj.weight": torch.zeros(128, 64),
                "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
            }
        )
        safetensors.torch.save_file(whole, file)
        lines = self.resumed(self.empty(model), folder, "more")
        self.assertRegex(
            "\n".join(lines),
            r"^nearstep: 2 tensors .*: model.layers.0.self_attn.q_proj.bias, model.layers.2.mlp.up_proj.weight$",
        )
        with nearstep.empty():
            inner = type(model.model)(model.config)
        self.assertIn("3 tensors", self.resumed(inner, folder, "inner")[0], "the head has no place in it either")
        tied = type(model.config)(**{**model.config.to_dict(), "tie_word_embeddings": True})
        with nearstep.empty():
            made = type(model)(tied)
        self.assertIn(
            "lm_head.weight",
            self.resumed(made, folder, "tied")[0],
            "the head of an untied model differs from its embedding",
        )
        plain = torch.nn.Sequential(torch.nn.Linear(4, 4))
        safetensors.torch.save_file({**plain.state_dict(), "1.weight": torch.zeros(2)}, file)
        with nearstep.empty():
            made = torch.nn.Sequential(torch.nn.Linear(4, 4))
        self.assertRegex(self.resumed(made, folder, "plain")[0], "1 tensors .*: 1.weight$")

    def test_f16_files_and_parameters_of_another_format(self):
        model, folder = self.saved("llama", torch.float16)
        made = self.empty(model)
        _, opt = self.make(nearstep.groups(made), weights=folder)
        self.assertEqual(opt.resume(), 0)
        self.assertEqual({p.dtype for p in made.parameters()}, {torch.float32})
        self.assert_equal_tensors(made.named_parameters(), model.float().named_parameters())

    def test_parameters_are_the_engines_memory_and_resume_needs_no_weights(self):
        model, folder = self.saved("gpt2", torch.bfloat16)
        made = self.empty(model, torch.bfloat16)
        _, opt = self.make(nearstep.groups(made), weights=folder)
        self.assertEqual(len(self.steps("gpt2", made, opt)), 3)
        vector = opt._conductor.vector()
        for key, p in made.named_parameters():
            self.assertTrue(0 <= p.data_ptr() - vector.data_ptr() < vector.numel(), key)
        digest = opt.masters_digest()
        opt.close()
        rest = self.steps_in_memory_of(made)
        converted = self.empty(model, torch.bfloat16)
        _, opt = self.make(nearstep.groups(converted), path=self.folder / "converted", weights=folder)
        self.steps("gpt2", converted, opt, 1)
        converted.float().bfloat16()
        self.steps("gpt2", converted, opt, 2, first=1)
        self.assertEqual(opt.masters_digest(), digest)
        self.assertEqual(self.steps_in_memory_of(converted), rest, "converted parameters are copies, and follow")
        del vector, opt
        shutil.rmtree(folder)
        again = self.empty(model, torch.bfloat16)
        _, opt = self.make(nearstep.groups(again))
        self.assertEqual(opt.resume(), 3)
        self.assertEqual(opt.masters_digest(), digest)
        self.assertEqual(self.steps_in_memory_of(again), rest)

    def test_parameters_between_two_steps_are_not_read(self):
        """The update begins in backward, where the engine's memory gets new parameters."""
        with nearstep.empty():
            made = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
        _, opt = self.make(made, config={"csd.subgroup_tiles": 1})
        for _ in range(3):
            networks.descend(made(torch.ones(2, 256)).square().mean(), opt)
        before = {key: p.clone() for key, p in made.state_dict().items()}
        made(torch.ones(2, 256)).square().mean().backward()
        with torch.no_grad():
            self.refuses(RuntimeError, ("0.weight", "step()"), lambda: made(torch.ones(2, 256)))
        for read in (opt.synchronize, made.state_dict):
            self.refuses(RuntimeError, "step()", read)
        begun = lambda: any(
            not torch.equal(value, before[name]) for name, value in zip(opt._names, opt._session.parameters.values)
        )
        end = time.monotonic() + launcher.WORKERS_LIMIT_S
        while not begun():
            self.assertLess(time.monotonic(), end, "the update has begun")
            time.sleep(0.01)
        opt.close()
        self.assert_equal_tensors(made.state_dict(), before)

    def steps_in_memory_of(self, model):
        with torch.no_grad():
            return model(**networks.inputs("gpt2", 2, torch.Generator().manual_seed(9))).loss.item()

    def test_without_weights_modules_draw_their_own_start_values(self):
        model = networks.make("gpt2")
        digests = []
        for path, seed in (("one", 4), ("two", 4), ("three", 5)):
            made = self.empty(model)
            _, opt = self.make(nearstep.groups(made), path=self.folder / path, seed=seed)
            self.assert_states(self.said_by(opt.resume), "0.11 M")
            digests.append(opt.masters_digest())
            for (key, p), (_, other) in zip(made.named_parameters(), model.named_parameters(), strict=True):
                self.assertAlmostEqual(
                    p.std().item() if p.numel() > 1 else 0, other.std().item(), delta=0.15 * other.std().item(), msg=key
                )
                self.assertAlmostEqual(p.mean().item(), other.mean().item(), delta=0.004, msg=key)
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[0], digests[2])
        with nearstep.empty():
            plain = networks.Layers(2, 160)
        _, opt = self.make(plain, path=self.folder / "plain")
        losses = self.train(plain, opt, 0, 3)
        self.assertTrue(all(0.5 < loss < 2 for loss in losses), losses)

    def test_lora_on_a_frozen_base(self):
        model, folder = self.saved("llama")
        losses = []
        for weights, base in ((None, model), (folder, self.empty(model))):
            torch.manual_seed(3)
            adapted = peft.get_peft_model(
                base, peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "down_proj"])
            )
            losses.append(self.trained("llama", adapted, f"lora-{weights is None}", weights=weights))
        self.assertEqual(*losses)

    def test_the_start_takes_the_vector_the_devices_gradients_and_little_else(self):
        import safetensors.torch

        weights = self.folder / "model.safetensors"
        value = torch.randn(1000, 1000).bfloat16()
        safetensors.torch.save_file({f"{i}.weight": value.clone() for i in range(30)}, weights)
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, self.folder / "state", weights],
            text=True,
            capture_output=True,
            timeout=launcher.WORKERS_LIMIT_S,
            env=launcher.environment(),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        vector, gradients = 2 * 30e6 / 2**20, 0.5 * 30e6 / 2**20
        self.assertGreater(float(done.stdout), vector)
        self.assertLess(float(done.stdout), vector + gradients + 30, "a second copy takes 57 MB")

    def test_weights_that_do_not_fit_are_refused(self):
        model, folder = self.saved("llama", max_shard_size="100KB")
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        shards = sorted(set(index["weight_map"].values()))
        cases = [
            (("96 x 64", "97 x 64"), lambda copy: None, {"vocab_size": 97}),
            ((9, "model.layers.2."), lambda copy: None, {"num_hidden_layers": 3}),
            (shards[1], lambda copy: (copy / shards[1]).unlink(), {}),
            (shards[0], lambda copy: (copy / shards[0]).write_bytes((copy / shards[0]).read_bytes()[:-10]), {}),
            (
                "../x",
                lambda copy: (copy / "model.safetensors.index.json").write_text(
                    json.dumps({"weight_map": {"lm_head.weight": "../x"}})
                ),
                {},
            ),
            ("model.safetensors", lambda copy: shutil.rmtree(copy), {}),
        ]
        for stated, harm, changes in cases:
            with self.subTest(stated):
                copy = self.folder / "copy"
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(folder, copy)
                harm(copy)
                config = type(model.config)(**{**model.config.to_dict(), **changes})
                with nearstep.empty():
                    made = type(model)(config)
                self.refuses(
                    (ValueError, OSError),
                    stated,
                    lambda: nearstep.AdamW(nearstep.groups(made), path=self.path, weights=copy),
                )
        self.assertFalse(self.path.exists(), "refused before anything is written")

    def test_parameters_without_values_are_not_used(self):
        with nearstep.empty():
            model = networks.Layers(2, 160)
        _, opt = self.make(model)
        weight = next(model.parameters())
        uses = (
            lambda: copy.deepcopy(model),
            lambda: pickle.dumps(model),
            model.state_dict,
            weight.sum,
            weight.detach,
            lambda: 2 * weight,
            lambda: weight.data.copy_(weight),
        )
        for use in uses:
            self.refuses(RuntimeError, "opt.resume()", use)
        model.to("cpu").float()
        self.assertEqual(torch.zeros_like(weight).sum(), 0)
        opt.resume()
        for use in (*uses[:3], weight.sum):
            use()

    def test_models_that_cannot_be_filled_are_refused(self):
        model, folder = self.saved("gpt2")
        self.refuses(
            ValueError, ("weights", "nearstep.empty()"), lambda: self.make(nearstep.groups(model), weights=folder)
        )
        with nearstep.empty():
            self.refuses(
                RuntimeError,
                ("from_config()", "from_pretrained()", "weights=FOLDER"),
                lambda: type(model).from_pretrained(folder),
            )
        made = self.empty(model)
        self.refuses(ValueError, "nearstep.groups(module)", lambda: nearstep.AdamW(made.parameters(), path=self.path))
        self.refuses(
            ValueError,
            "nearstep.groups(module)",
            lambda: nearstep.AdamW(made.parameters(), path=self.path, weights=folder),
        )
        for p in made.parameters():
            p.data = torch.zeros(p.shape)
        self.refuses(ValueError, "weights", lambda: self.make(nearstep.groups(made), weights=folder))
        with nearstep.empty():
            bare = Reset()
        _, opt = self.make(bare)
        self.refuses(ValueError, ("scale", "Reset", "weights=FOLDER"), opt.resume)
        self.assertEqual(bare.scale.untyped_storage().nbytes(), 4, "empty as before")
        with torch.no_grad():
            self.refuses(RuntimeError, "opt.resume()", lambda: bare(None))

    def test_a_notebook_shows_how_far_the_start_is(self):
        shell = types.SimpleNamespace(kernel=object())
        modules = {"IPython": types.SimpleNamespace(get_ipython=lambda: shell)}
        starts, updates = iter((0.25, 0.5, 2.0)), []

        class Bar:
            n = 0

            def __init__(self, **_):
                pass

            def update(self, more):
                self.n += more
                updates.append(self.n)

            def close(self):
                updates.append("closed")

        class Conductor:
            rank = 0

            @property
            def start_share(self):
                return next(starts, 1)

        modules["tqdm"] = modules["tqdm.auto"] = types.SimpleNamespace(tqdm=Bar)
        with unittest.mock.patch.dict(sys.modules, modules), unittest.mock.patch.object(waiting, "_SECONDS", 0.001):
            with waiting.shown(Conductor()):
                while len(updates) < 3:
                    time.sleep(0.001)
            self.assertEqual(updates[:3] + updates[-1:], [25, 50, 100, "closed"])
            shell.kernel = None  # a terminal: lines, as ever
            with waiting.shown(Conductor()):
                pass
        _, opt = self.make()
        opt.resume()
        opt.finish()
        self.assertAlmostEqual(opt._conductor.start_share, 1, delta=0.01)


if __name__ == "__main__":
    launcher.main()
