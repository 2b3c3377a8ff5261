"""Parameters that are read outside of their module's forward have the values of the last step. One process,
one rank.
"""

import copy
import errno
import os
import pathlib
import resource
import subprocess
import sys
import unittest.mock
import warnings

import launcher
from package import Package

import torch

import nearstep
import networks
from nearstep._saving import extra


class Fused(torch.nn.Module):
    """Reads its head's weight itself, as a fused loss does, and a scale that no module has."""

    def __init__(self, scale=None):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(300, 300) for _ in range(2))
        self.head = torch.nn.Linear(300, 300)
        self.outside = [scale]  # no attribute of the module

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        x = torch.nn.functional.linear(x, self.head.weight, self.head.bias)
        return x if self.outside[0] is None else x * self.outside[0]


class Apart(torch.nn.Module):
    """Computes in a method other than forward()."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(300, 300) for _ in range(2))
        self.scale = torch.nn.Parameter(torch.ones(300, 300))

    def features(self, x):
        return self.layers[1](self.layers[0](x)) @ self.scale


class Reads(Package):
    def losses(self, compute, opt, steps=5):
        batches = (torch.randn(4, 300, generator=torch.Generator().manual_seed(step)) for step in range(steps))
        return [networks.descend((compute(batch) - 1).square().mean(), opt) for batch in batches]

    def assert_as_torch(self, made, compute_of, parameters_of, **settings):
        """Losses of a copy under torch.optim, then of the model."""
        torch.manual_seed(1)
        model = made()
        other = copy.deepcopy(model)
        theirs = self.losses(compute_of(other), torch.optim.AdamW(parameters_of(other), lr=1e-2, weight_decay=0))
        opt = nearstep.AdamW(
            model if not settings.get("groups") else settings["groups"](model), lr=1e-2, weight_decay=0, path=self.path
        )
        self.opened.append(opt)
        ours = self.losses(compute_of(model), opt)
        for a, b in zip(theirs, ours, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-4 * abs(a))
        return model, opt

    def test_a_weight_that_the_whole_module_reads(self):
        self.assert_as_torch(Fused, lambda model: model, lambda model: model.parameters())

    def test_a_parameter_that_no_module_has(self):
        def with_scale():
            return Fused(torch.nn.Parameter(torch.full((300,), 2.0)))

        def both(model):
            groups = nearstep.groups(model, weight_decay=0)
            groups.append({"params": [model.outside[0]]})
            return groups

        self.assert_as_torch(
            with_scale, lambda model: model, lambda model: [*model.parameters(), model.outside[0]], groups=both
        )

    def test_a_method_other_than_forward(self):
        self.assert_as_torch(Apart, lambda model: model.features, lambda model: model.parameters())

    def test_the_state_of_a_part_is_that_of_the_whole(self):
        model, opt = self.make(Fused())
        self.losses(model, opt)
        part = {f"layers.{key}": value.clone() for key, value in model.layers.state_dict().items()}
        self.assert_equal_tensors(part, {key: value for key, value in model.state_dict().items() if key in part})

    def test_what_is_unfrozen_later_is_named(self):
        for number, params in enumerate((lambda model: model.parameters(), lambda model: model, nearstep.groups)):
            model = Fused()
            model.head.requires_grad_(False)
            _, opt = self.make(params(model), path=self.folder / str(number))
            self.losses(model, opt, 1)
            model.head.requires_grad_(True)
            self.refuses(RuntimeError, ("2 parameters", "frozen"), lambda: self.losses(model, opt, 1))
            opt.close()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def test_what_trains_later_and_what_is_resumed(self):
        model, opt = self.make(Fused())
        model.head.requires_grad_(False)
        self.losses(model, opt, 2)
        model.head.requires_grad_(True)
        self.losses(model, opt, 2)
        weights = {key: value.clone() for key, value in model.state_dict().items()}
        opt.close()
        model, opt = self.make(Fused())
        self.assertEqual(opt.resume(), 4)
        self.assert_equal_tensors(model.state_dict(), weights)

    def test_a_copy_is_a_plain_module(self):
        model, opt = self.make(Fused())
        self.losses(model, opt, 1)
        other = copy.deepcopy(model)
        self.losses(model, opt, 1)
        with warnings.catch_warnings(action="error"):
            other.load_state_dict(model.state_dict())
        other(torch.ones(1, 300))

    def test_layers_with_losses_of_their_own(self):
        with nearstep.empty():
            model = torch.nn.ModuleList(torch.nn.Linear(300, 300) for _ in range(3))
        _, opt = self.make(model, accumulation=1)
        for _ in range(3):
            x = torch.ones(2, 300)
            for layer in model:
                x = layer(x.detach())
                x.square().mean().backward()
            opt.step()
            opt.zero_grad()
        self.assertEqual(opt.steps, 3)

    def test_a_streamed_model_is_not_copied(self):
        model = Fused()
        _, opt = self.make(model, stream=nearstep.Stream(slots=2))
        self.losses(model, opt, 1)
        self.refuses(RuntimeError, "close()", lambda: copy.deepcopy(model))
        opt.close()
        copy.deepcopy(model)

    def test_folders_of_any_name_and_empty_parameters(self):
        for name in ("a b", "ü 雪", "run\N{ROCKET}", 'quote"'):
            with self.subTest(name):
                model = Fused()
                model.nothing = torch.nn.Parameter(torch.ones(0, 5))
                _, opt = self.make(model, path=self.folder / name, config={})
                self.losses(model, opt, 1)
                self.assertTrue(
                    pathlib.Path(opt.save(self.folder / name / "saved", extra=7)).is_relative_to(self.folder / name)
                )
                self.assertTrue(list((self.folder / name).glob("*.state")), name)
                opt.close()

    def test_extra_is_that_of_the_run(self):
        model, opt = self.make(Fused())
        self.losses(model, opt, 2)
        saved = opt.save(extra={"at": 2})
        opt.close()
        model, opt = self.make(Fused(), fresh=True)
        self.losses(model, opt, 2)
        opt.close()
        _, opt = self.make(Fused())
        self.assertEqual(opt.resume(), 2)
        self.assertIsNone(opt.extra)
        opt.close()
        _, opt = self.make(Fused(), path=self.folder / "again")
        self.assertEqual(opt.resume(saved), 2)
        opt.close()
        _, opt = self.make(Fused(), path=self.folder / "again")
        self.assertEqual(opt.resume(), 2, "a new line, whose parent has saved")
        self.assertEqual(opt.extra, {"at": 2})
        opt.close()
        _, opt = self.make(Fused(), path=self.folder / "other")
        self.assertEqual(opt.resume(pathlib.Path(saved)), 2)
        self.assertEqual(opt.extra, {"at": 2})

    def test_training_goes_on_after_a_disk_was_full_during_save(self):
        model, opt = self.make(Fused(), state="compact")  # the state's file is smaller than a checkpoint
        self.losses(model, opt, 1)
        opt.save()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_300_000, limits[1]))
        try:
            self.refuses(
                OSError,
                (self.folder / "full/step-00000001", "File too large", "MB", "ulimit -f"),
                lambda: opt.save(self.folder / "full"),
            )
            self.losses(model, opt, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.assertEqual(list((self.folder / "full").glob("*.rank-*")), [])
        self.assertTrue(pathlib.Path(opt.save(self.folder / "full")).exists())
        with unittest.mock.patch.object(extra, "_make", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))):
            self.refuses(
                OSError,
                ("step-00000002.extra.json", "No space left on device", "free some space"),
                lambda: opt.save(extra={"at": 2}),
            )
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
        try:
            self.refuses(
                OSError, ("model.safetensors", "File too large", "MB"), lambda: opt.export(self.folder / "exported")
            )
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        self.assertEqual(list(self.folder.glob("exported*")), [])
        opt.export(self.folder / "exported")

    def test_a_failure_at_the_end_of_the_process_has_an_exit_code(self):
        script = (
            "import torch, nearstep, sys\nmodel = torch.nn.Linear(8, 8)\nopt = nearstep.AdamW(model, "
            "path=sys.argv[1])\n"
            "model(torch.ones(1, 8)).sum().backward()\nopt.step()\nopt.close = lambda: 1 / 0\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, self.folder / "end"],
            env=launcher.environment(),
            text=True,
            capture_output=True,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("ZeroDivisionError", done.stderr)

    def test_names_that_checkpoints_cannot_hold_are_refused(self):
        model = torch.nn.ModuleDict({"en/de": torch.nn.Linear(4, 4)})
        self.refuses(ValueError, "en/de.weight", lambda: self.make(model))


if __name__ == "__main__":
    launcher.main()
