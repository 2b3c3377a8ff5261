"""Exports, checkpoints and what the module shows: what is asked for comes, or one sentence as the right exception. One
process, one rank.
"""

import copy
import errno
import json
import pathlib
import unittest.mock

import launcher
from package import Package

import torch

import nearstep
import networks


class Exports(Package):
    def loaded(self, folder):
        """Transformers' model of it, which has every key."""
        import transformers

        loaded, about = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(about[kind], kind)
        return loaded

    def test_from_pretrained_loads_every_key_and_computes_the_same(self):
        import transformers

        for name in ("gpt2", "llama"):
            with self.subTest(name):
                torch.manual_seed(3)
                model = networks.make(name)
                model, opt = self.make(model, path=self.folder / f"state-{name}", config={})
                batch = networks.inputs(name, 4, torch.Generator().manual_seed(1))
                for _ in range(2):
                    networks.descend(model(**batch).loss, opt)
                folder = self.folder / f"model-{name}"
                opt.export(folder)
                loaded = self.loaded(folder)
                with torch.no_grad():
                    self.assertTrue(torch.equal(loaded(**batch).logits, model.eval()(**batch).logits))
                self.refuses(ValueError, folder, lambda: opt.export(folder))
                self.assert_hdf5_has(opt, loaded.state_dict(), self.folder / f"hdf5-{name}" / "model.h5")
                opt.export(self.folder / f"half-{name}", dtype=torch.bfloat16)
                self.refuses(
                    ValueError, "not torch.float64", lambda: opt.export(self.folder / "double", dtype=torch.float64)
                )
                half = transformers.AutoModelForCausalLM.from_pretrained(
                    self.folder / f"half-{name}", dtype=torch.bfloat16
                )
                self.assert_equal_tensors(
                    {key: value.bfloat16() for key, value in model.state_dict().items()}, half.state_dict()
                )

    def assert_hdf5_has(self, opt, expected, file):
        import h5py

        file.parent.mkdir()
        opt.export(file)
        with h5py.File(file) as found:
            first = {tie: key for key, one in found.items() for tie in one.attrs.get("ties", ())}
            self.assertTrue(first.keys().isdisjoint(found))
            for key, value in expected.items():
                self.assertTrue(torch.equal(torch.from_numpy(found[first.get(key, key)][()]), value), key)
        self.assertTrue((file.parent / "config.json").exists())
        self.refuses(ValueError, f"{file} exists", lambda: opt.export(file))
        self.refuses(ValueError, "bf16", lambda: opt.export(file.with_name("half.h5"), dtype="bf16"))

    def test_names_that_hdf5_does_not_hold(self):
        for name in ("a/b", "a\0b", "a" * 70000):
            model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.ones(3))})
            self.refuses(ValueError, "rename its module", lambda: self.make(model))
            model = torch.nn.Linear(3, 3)
            model.register_buffer(name, torch.ones(3))
            model, opt = self.make(model, path=self.folder / "other", fresh=True)
            model(torch.ones(1, 3)).sum().backward()
            opt.step()
            self.refuses(ValueError, "export safetensors", lambda: opt.export(self.folder / "model.h5"))
            opt.export(self.folder / f"model-{len(name)}-{name[1:2] == '/'}")
            opt.close()

    def test_frozen_parts_and_buffers_are_exported_too(self):
        import safetensors.torch

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.base, self.norm, self.head = torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8)
                self.base.requires_grad_(False)
                self.again, self.head_again = self.base, self.head  # a second name of each
                self.register_buffer("mask", torch.tensor([[True, False], [False, True]]).t())
                self.register_buffer("table", torch.arange(12, dtype=torch.float64).view(3, 4).t())
                self.register_buffer("nothing", torch.zeros(0, 3))
                self.register_buffer("passing", torch.ones(2), persistent=False)

            def forward(self, x):
                return self.head(self.norm(self.base(x)))

        model, opt = self.make(Model())
        for step in range(2):
            networks.descend(
                model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step))).square().mean(), opt
            )
        opt.export(self.folder / "model")
        stored = safetensors.torch.load_file(self.folder / "model" / "model.safetensors")
        state = model.state_dict()
        self.assertEqual(set(stored), {name for name in state if "again" not in name})
        for name, value in stored.items():
            self.assertTrue(torch.equal(value, state[name].to(value.dtype)), name)
        self.assertEqual(
            {name: stored[name].dtype for name in ("base.weight", "mask", "table", "norm.num_batches_tracked")},
            {
                "base.weight": torch.float32,
                "mask": torch.bool,
                "table": torch.float32,
                "norm.num_batches_tracked": torch.int64,
            },
        )
        loaded = Model()
        self.assertEqual(loaded.load_state_dict(stored, strict=False).unexpected_keys, [])
        self.assert_equal_tensors(loaded.state_dict(), state)
        opt.export(self.folder / "half", dtype="bf16")
        half = safetensors.torch.load_file(self.folder / "half" / "model.safetensors")
        for name in ("base.weight", "norm.running_var", "head.bias"):
            self.assertTrue(torch.equal(half[name], state[name].bfloat16()), name)
        self.assertTrue(torch.equal(half["norm.num_batches_tracked"], torch.tensor(2)))

    def test_from_pretrained_reads_a_model_with_frozen_layers(self):
        model = networks.make("llama")
        model.generation_config.eos_token_id = [3, 4]
        for p in model.model.layers[0].parameters():
            p.requires_grad_(False)
        model.model.embed_tokens.weight.requires_grad_(False)
        model, opt = self.make(model, config={})
        batch = networks.inputs("llama", 4, torch.Generator().manual_seed(1))
        networks.descend(model(**batch).loss, opt)
        opt.export(self.folder / "model")
        loaded = self.loaded(self.folder / "model")
        self.assert_equal_tensors(model.state_dict(), loaded.state_dict())
        self.assertEqual(loaded.generation_config.eos_token_id, [3, 4])

    def test_what_safetensors_cannot_hold_is_named(self):
        class WithState(torch.nn.Linear):
            def get_extra_state(self):
                return {"calls": 3}

            def set_extra_state(self, state):
                pass

        _, opt = self.make(torch.nn.Sequential(WithState(8, 8)))
        self.refuses(ValueError, ("0._extra_state", "dict"), lambda: opt.export(self.folder / "model"))
        self.assertFalse((self.folder / "model").exists())
        _, plain = self.make(
            cls=lambda module, **settings: nearstep.AdamW(
                module.parameters(), **{**settings, "path": self.folder / "plain"}
            )
        )
        self.refuses(ValueError, "nearstep.groups(module)", lambda: plain.export(self.folder / "model"))


class Checkpoints(Package):
    def test_extra_is_written_through_no_link(self):
        model, opt = self.make()
        self.train(model, opt, 0, 3)
        thesis = self.folder / "thesis.tex"
        thesis.write_text("a thesis")
        folder = pathlib.Path(opt.save(extra={"batch": 2})).parent
        for name in ("step-00000003.extra.json", "step-00000003.extra.json.partial"):
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(thesis)
        opt.save(extra={"batch": 3})
        self.assertEqual(thesis.read_text(), "a thesis")
        self.assertFalse((folder / "step-00000003.extra.json").is_symlink())
        opt.close()
        _, opt = self.make()
        self.assertEqual((opt.resume(), opt.extra), (3, {"batch": 3}))

    def test_resume_finds_what_save_wrote_elsewhere(self):
        model, opt = self.make(durability="checkpoint")
        for step in (2, 3):
            self.train(model, opt, opt.steps, step)
            opt.save(self.folder / "elsewhere", extra={"batch": step})
        opt.close()
        left = list((self.folder / "elsewhere").glob("*.extra.json"))
        self.assertEqual(
            [path.name for path in left], ["step-00000003.extra.json"], "the older one went with its checkpoint"
        )
        self.assertEqual(left[0].stat().st_mode & 0o027, 0)
        _, opt = self.make(durability="checkpoint")
        self.assertEqual((opt.resume(), opt.extra), (3, {"batch": 3}))

    def test_extra_that_cannot_be_written_leaves_its_room(self):
        model, opt = self.make()
        self.train(model, opt, 0, 3)
        with unittest.mock.patch(
            "nearstep._saving.extra.os.fsync", side_effect=OSError(errno.ENOSPC, "No space left on device")
        ):
            self.refuses(OSError, "step-00000003.extra.json", lambda: opt.save(extra={"batch": 3}))
        self.assertEqual([path.name for path in (self.folder / "checkpoints").glob("*.partial")], [])

    def test_a_state_dict_that_does_not_say_where_the_state_is(self):
        model, opt = self.make()
        self.train(model, opt, 0, 3)
        given = json.loads(json.dumps(opt.state_dict()))
        place = json.loads(given["param_groups"][0].pop("nearstep"))
        self.refuses(ValueError, "nearstep", lambda: opt.load_state_dict(given))
        for bad in (
            5,
            "here",
            "5",
            {"step": 3},
            {**place, "checkpoint": None},
            json.dumps({**place, "checkpoint": None}),
        ):
            self.refuses(ValueError, "opt.state_dict()", lambda: opt.load_state_dict({**given, "nearstep": bad}))
        opt.load_state_dict({**given, "nearstep": place})  # as 0.2.0 had it

    def test_state_dict_is_a_pointer_and_leads_back(self):
        model, opt = self.make()
        self.train(model, opt, 0, 3)
        opt.save(extra={"batch": 3})
        digest = opt.masters_digest()
        pointer = json.loads(json.dumps({"optimizer": opt.state_dict(), "weights": {}}))["optimizer"]
        self.assertLess(len(json.dumps(pointer)), 4000)
        self.assertEqual(json.loads(pointer["param_groups"][0]["nearstep"])["step"], 3)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        opt.load_state_dict(opt.state_dict())  # already there: nothing to do
        losses = self.train(model, opt, 3, 6)
        last = opt.masters_digest()
        opt.close()
        again, opt = self.make()
        opt.load_state_dict(pointer)
        self.assertEqual((opt.steps, opt.extra), (3, {"batch": 3}))
        self.assertEqual(opt.masters_digest(), digest)
        self.assert_equal_tensors(again.state_dict(), weights)
        self.assertEqual(self.train(again, opt, 3, 6), losses)
        self.assertEqual(opt.masters_digest(), last)

    def test_torchs_distributed_checkpoint_leads_back(self):
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint import state_dict

        model, opt = self.make(lr=0.003)
        self.train(model, opt, 0, 3)
        weights, of_opt = state_dict.get_state_dict(model, opt)
        checkpoint.save({"model": weights, "opt": of_opt}, checkpoint_id=self.folder / "saved")
        losses, last = self.train(model, opt, 3, 5), opt.masters_digest()
        opt.close()
        for path in ("again", "other"):
            again, opt = self.make(path=self.folder / path, lr=0.1)
            weights, of_opt = state_dict.get_state_dict(again, opt)
            given = {"model": weights, "opt": of_opt}
            checkpoint.load(given, checkpoint_id=self.folder / "saved")
            state_dict.set_state_dict(again, opt, model_state_dict=given["model"], optim_state_dict=given["opt"])
            self.assertEqual(
                (opt.steps, opt.param_groups[0]["lr"], opt.param_groups[0].keys() & {"nearstep"}), (3, 0.003, set())
            )
            self.assertEqual((self.train(again, opt, 3, 5), opt.masters_digest()), (losses, last))
        kept = copy.deepcopy(opt.state_dict())  # as a copy of the best, and as async_save() does
        self.train(again, opt, 5, 6)
        opt.close()
        again, opt = self.make(path=self.folder / "best")
        opt.load_state_dict(kept)
        self.assertEqual((opt.steps, opt.masters_digest()), (5, last))
        flat = state_dict.StateDictOptions(flatten_optimizer_state_dict=True)  # leaves out what a new optimizer has not
        given = state_dict.get_optimizer_state_dict(again, opt, options=flat)
        self.refuses(
            ValueError, "opt.resume()", lambda: state_dict.set_optimizer_state_dict(again, opt, given, options=flat)
        )

    def test_torchs_distributed_checkpoint_of_two_optimizers(self):
        from torch.distributed import checkpoint
        from torch.distributed.checkpoint import state_dict

        def make(name):
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
            return model, [
                nearstep.AdamW(layer, lr=0.1, path=self.folder / f"{name}-{i}") for i, layer in enumerate(model)
            ]

        model, opts = make("first")
        for opt in opts:
            model(torch.ones(2, 4)).square().mean().backward()
            opt.step()
        given = state_dict.get_optimizer_state_dict(model, opts)
        checkpoint.save(given, checkpoint_id=self.folder / "saved")
        model, others = make("second")
        given = state_dict.get_optimizer_state_dict(model, others)
        checkpoint.load(given, checkpoint_id=self.folder / "saved")
        state_dict.set_optimizer_state_dict(model, others, given)
        self.assertEqual([opt.masters_digest() for opt in others], [opt.masters_digest() for opt in opts])

    def test_a_state_dict_that_leads_nowhere(self):
        model, opt = self.make()
        self.train(model, opt, 0, 3)
        pointer = opt.state_dict()
        self.train(model, opt, 3, 5)
        digest = opt.masters_digest()
        opt.close()
        _, opt = self.make()
        self.refuses(ValueError, "opt.save()", lambda: opt.load_state_dict(pointer))
        opt.close()
        self.assert_kept(digest, 5)
        self.train(*self.make(path=self.folder / "other"), 0, 1)

    def test_a_state_dict_whose_checkpoint_another_run_has_replaced(self):
        pointers = []
        for _ in range(2):
            model, opt = self.make(fresh=True)
            self.train(model, opt, 0, 3)
            opt.save()
            pointers.append(opt.state_dict())
            opt.close()
        for path in (self.path, self.folder / "other"):
            _, opt = self.make(path=path)
            self.refuses(ValueError, "step 3", lambda: opt.load_state_dict(pointers[0]))
            opt.close()
        _, opt = self.make(path=self.folder / "another")
        opt.load_state_dict(pointers[1])
        self.assertEqual(opt.steps, 3)


class Module(Package):
    def test_weights_after_close_and_in_the_modules_state_dict_are_the_last_steps(self):
        model, opt = self.make()
        self.train(model, opt, 0, 1)
        opt.finish()
        self.assertEqual(opt.stats()["bytes"]["checkpoint"], 0, "the start does not count")
        self.train(model, opt, 1, 3)
        out = {name: value.clone() for name, value in model.state_dict().items()}
        opt.close()
        self.assert_equal_tensors(model.state_dict(), out)
        model.loss(0).backward()
        self.assertTrue(all(p.grad is not None for p in model.parameters()), "a plain module again")


if __name__ == "__main__":
    launcher.main()
