"""Tests that what an ordinary PyTorch loop does to gradients and steps has the same effect with nearstep, or raises at
that line."""

import copy
import pickle
import signal
import subprocess
import sys
import unittest.mock

import launcher
from plain_loop import DEVICE, Loop, backward, batch, network, take_step

import torch
from torch.nn.utils import (
    clip_grad_norm_,
    clip_grad_value_,
    get_total_norm,
)  # before the optimizer is made, as scripts do

import nearstep
from nearstep import _ranks
from nearstep._gradients.intake import Intake
from nearstep._model.parameters import Parameters


class Gradients(Loop):
    # --- Gradients that have left ---

    def test_any_use_of_a_gradient_that_has_left_raises(self):
        model, opt = self.make(network())
        params = list(model.parameters())
        for number in range(3):  # the first step learns the number of passes
            backward(model, number)
            p = params[0]
            self.assertEqual((p.grad.shape, p.grad.dtype, p.grad is None), (p.shape, p.dtype, False))
            self.assertIn("gradient", repr(p.grad))
            uses = (
                lambda: clip_grad_norm_(params, 1.0),
                lambda: clip_grad_value_(params, 1.0),
                lambda: get_total_norm([p.grad for p in params]),
                lambda: p.grad.norm(),
                lambda: p.grad.mul_(0.5),
                lambda: p.grad + 1,
                lambda: p.grad.clone(),
                lambda: p.grad.data,
                lambda: p.grad.detach(),
                lambda: p.grad.isnan().any(),
                lambda: p.grad[0],
                lambda: p.grad.cpu().numpy(),
                lambda: p.grad.tolist(),
                lambda: p.grad.copy_(torch.ones_like(p)),
                lambda: torch._foreach_mul_([p.grad for p in params], 0.5),
                lambda: torch.nn.utils.parameters_to_vector([p.grad for p in params]),
                lambda: copy.deepcopy(p.grad),
                lambda: pickle.dumps(p.grad),
                lambda: p.grad.view(-1),
                lambda: p.grad.data_ptr(),
                lambda: setattr(p.grad, "data", torch.ones_like(p)),
                lambda: torch.stack([p.grad]),
                lambda: p.grad.untyped_storage(),
            )
            for use in uses:
                self.refuses(RuntimeError, "clip_norm", use)
            opt.step()
            opt.zero_grad()
        self.assertEqual(opt.steps, 3)

    def test_clipping_by_pytorch_is_taken_over(self):
        norms = []

        def loop(model, optimizer, step):
            norms.append([])
            for _ in range(2):
                optimizer.zero_grad()
                loss = backward(model, step)
                norms[-1].append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05))
                optimizer.step()
            return loss

        _, opt = self.compare(loop)
        wanted, got = (torch.stack([norm.cpu() for pair in norms[which::2] for norm in pair]) for which in (0, 1))
        self.assertLess(0.05, min(wanted), "every step is clipped")
        opt.finish()
        torch.testing.assert_close(opt.stats()["norm"], float(wanted[-1]), rtol=1e-4, atol=0)
        self.assertEqual(float(got[0]), 0)
        for number, norm in enumerate(got[2:], 2):
            self.assertLess(
                abs(wanted[number - 2 : number] - norm).min(),
                1e-4,
                "of the last finished step, which is one of the two before",
            )
        self.assertEqual(opt.steps, 12)

    def test_clipping_by_pytorch_that_cannot_be_taken_over(self):
        model, opt = self.make(network())
        other = network()
        params = list(model.parameters())
        backward(model, 0)
        backward(other, 0)
        clip = torch.nn.utils.clip_grad_norm_
        for use in (
            lambda: clip(params[1:], 1.0),
            lambda: clip(params + list(other.parameters()), 1.0),
            lambda: clip(params, 1.0, norm_type=1),
        ):
            self.refuses(RuntimeError, ("clip_norm=...", "keep_gradients=True"), use)
        for limit in (0, -1.0, float("nan")):
            self.refuses(RuntimeError, ("max_norm=", "keep_gradients=True"), lambda: clip(params, limit))
        clip(params, 1.0, foreach=False)
        clip(params, float("inf"))
        self.refuses(RuntimeError, ("max_norm=2", "clip_norm=2"), lambda: clip(params, 2.0))
        opt.step()
        opt.zero_grad()
        backward(model, 1)
        self.refuses(RuntimeError, ("clip_norm=1", "keep_gradients=True"), opt.step)
        clip(params, 1.0)
        opt.step()
        opt.close()
        model, opt = self.make(network(), accumulation=1, path=self.folder / "another")
        backward(model, 0)
        self.refuses(RuntimeError, ("max_norm=1", "clip_norm=1"), lambda: clip(model.parameters(), 1.0))

    def test_a_gradient_that_replaces_one_that_has_left(self):
        model, opt = self.make(network())
        take_step(model, opt, 0)
        backward(model, 1)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        self.refuses(RuntimeError, ("p.grad", "0.weight"), opt.step)
        opt.zero_grad()
        take_step(model, opt, 1)
        self.assertEqual(opt.steps, 2)

    def test_a_hook_from_before_sees_the_sum_or_is_refused(self):
        model = network()
        seen = []
        model[0].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        _, opt = self.make(model)
        backward(model, 0)
        self.refuses(RuntimeError, "keep_gradients=True", lambda: backward(model, 1))
        opt.close()
        model.zero_grad()
        _, opt = self.make(model, keep_gradients=True, path=self.folder / "kept")
        backward(model, 0)
        backward(model, 0)
        torch.testing.assert_close(seen[-1], 2 * seen[-2])

    def test_a_scaler_of_pytorch_with_kept_gradients(self):
        def loop(model, optimizer, step):
            scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0)
            loss = (model(batch(step)) - 1).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss

        self.compare(loop, keep_gradients=True)

    def test_autograd_grad_leaves_gradients_as_they_were(self):
        def loop(model, optimizer, step):
            out = model(batch(step))
            loss = (out - 1).square().mean()
            if step % 3 == 0:
                loss.backward(retain_graph=True)
            seen = torch.autograd.grad(out.sum(), list(model.parameters()), retain_graph=True)[0]
            stands = model[0].weight.grad is not None
            if step % 3 > 0:
                loss.backward()
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
                torch.autograd.grad(model(batch(step)).sum(), list(model.parameters()))
            return loss, seen, stands

        self.compare(loop, steps=9)
        self.compare(loop, steps=9, keep_gradients=True)

    def test_gradients_in_memory_that_the_program_uses_again(self):
        memory = {}

        def loop(model, optimizer, step):
            loss = (model(batch(step)) - 1).square().mean()
            params = list(model.parameters())
            held = memory.setdefault(id(model), [torch.empty_like(p) for p in params])
            for p, own, g in zip(params, held, torch.autograd.grad(loss, params)):
                own.copy_(g)
                p.grad = own
            optimizer.step()
            for own in held:
                own.fill_(1e6)
            return loss

        self.compare(loop, steps=10)

    def test_conversions_that_change_nothing_while_gradients_are_gone(self):
        def loop(model, optimizer, step):
            optimizer.zero_grad()
            loss = backward(model, step)
            optimizer.step()
            model.to(DEVICE).to(torch.float32).float()
            return loss

        _, opt = self.compare(loop)
        self.refuses(RuntimeError, "clip_norm", lambda: opt.param_groups[0]["params"][0].grad.double())

    def test_kept_gradients_are_clipped_masked_and_added_to(self):
        def loop(model, optimizer, step):
            loss = backward(model, step)
            for p in model.parameters():
                p.grad.add_(0.01 * torch.sign(p.detach()))
            next(model.parameters()).grad[:10] = 0
            norm = clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            return loss, norm

        self.compare(loop, keep_gradients=True)

    def test_kept_gradients_add_up_over_steps(self):
        def loop(model, optimizer, step):
            loss = backward(model, step)
            optimizer.step()
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            return loss

        self.compare(loop, lr=0.01, keep_gradients=True)

    def test_gradients_that_an_earlier_step_used(self):
        model, opt = self.make(network())
        backward(model, 0)
        opt.step()
        self.refuses(RuntimeError, ("p.grad", "zero_grad()", "keep_gradients=True"), opt.step)
        backward(model, 1)
        self.refuses(RuntimeError, ("p.grad", "zero_grad()", "keep_gradients=True"), opt.step)
        opt.zero_grad()
        backward(model, 2)
        opt.step()
        self.assertEqual(opt.steps, 2)

    def test_zeroed_gradients_count_as_zero(self):
        def loop(model, optimizer, step):
            loss = backward(model, step) if step != 3 else torch.zeros(())
            optimizer.step()
            (optimizer if step % 2 else model).zero_grad(set_to_none=False)
            return loss

        self.compare(loop, cls="Adam", lr=1e-3)

    def test_batches_that_are_dropped(self):
        for drop in (
            lambda model, optimizer: model.zero_grad(),
            lambda model, optimizer: optimizer.zero_grad(),
            lambda model, optimizer: model.zero_grad(set_to_none=False),
            lambda model, optimizer: [setattr(p, "grad", None) for p in model.parameters()],
        ):

            def loop(model, optimizer, step):
                (9 * model(batch(99)).square().sum()).backward()
                drop(model, optimizer)
                return take_step(model, optimizer, step)

            _, opt = self.compare(loop, steps=4)
            self.assertEqual(opt.steps, 4)

    def test_a_loop_goes_on_after_an_interrupt(self):
        """A notebook does, here with an interrupt in the middle of what passes to the engine."""
        for place in (
            (Intake, "_begin_counting"),
            (Parameters, "put"),
            (Parameters, "end_step"),
            (_ranks, "enter_step"),
        ):
            original = getattr(*place)

            def interrupted(*arguments):
                signal.raise_signal(signal.SIGINT)
                return original(*arguments)

            def loop(model, optimizer, step):
                is_ours = isinstance(optimizer, nearstep.SGD)
                if is_ours and step == 2:
                    with unittest.mock.patch.object(*place, interrupted), self.assertRaises(KeyboardInterrupt):
                        backward(model, step)
                        optimizer.step()
                    optimizer.zero_grad()
                    if optimizer.steps > step:
                        return torch.zeros(())
                loss = take_step(model, optimizer, step)
                return torch.zeros(()) if step == 2 else loss

            with self.subTest(place):
                self.compare(loop)

    def test_a_step_that_was_given_up_leaves_no_trace(self):
        for settings in (
            {},
            {"clip_norm": 0.1},
            {"codec": "q4"},
            {"config": {"csd.subgroup_tiles": 1}},
            {"state": "compact"},
            {"accumulation": 1},
        ):
            digests = []
            for drops in (False, True):
                model, opt = self.make(
                    network(), path=self.folder / f"{len(self.opened)}", **{"config": {}, **settings}
                )
                for step in range(4):
                    if drops:
                        opt._intake._cautious = 0
                        backward(model, 50 + step)
                        opt.zero_grad()
                        opt._intake._cautious = 0
                        handle = model[0].register_full_backward_hook(lambda *_: {}["no"])
                        with self.assertRaises(KeyError):
                            backward(model, 60 + step)
                        handle.remove()
                        opt.zero_grad()
                    take_step(model, opt, step)
                self.assertEqual(opt.steps, 4)
                digests.append(opt.masters_digest())
                opt.close()
            self.assertEqual(*digests, settings)

    def test_generator_and_discriminator(self):
        for passes in (1, 2):
            results = []
            for make in (
                lambda net, name: torch.optim.Adam(net.parameters(), lr=1e-3),
                lambda net, name: self.make(net, nearstep.Adam, path=self.folder / f"{name}{passes}")[1],
            ):
                generator, discriminator = network(1), network(2)
                optimizer_g, optimizer_d = make(generator, "g"), make(discriminator, "d")
                for step in range(5):
                    discriminator.zero_grad()
                    fake = generator(batch(step))
                    losses = [
                        (discriminator(batch(10 + step)) - 1).square().mean(),
                        discriminator(fake.detach()).square().mean(),
                    ]
                    for loss in losses if passes == 2 else [sum(losses)]:
                        loss.backward()
                    optimizer_d.step()
                    generator.zero_grad()
                    error = (discriminator(fake) - 1).square().mean()
                    error.backward()
                    optimizer_g.step()
                    results.append(torch.stack([*losses, error]).detach())
            for a, b in zip(results[:5], results[5:], strict=True):
                torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)

    def test_a_number_of_passes_for_tensors_without_a_module(self):
        for accumulation in (1, 2):

            def loop(model, optimizer, step):
                for i in range(accumulation):
                    loss = backward(model, 10 * step + i)
                optimizer.step()
                optimizer.zero_grad()
                return loss

            self.compare(loop, params=lambda model: model.parameters(), accumulation=accumulation)

    def test_parameter_groups_that_the_program_changes(self):
        def shorten(opt):
            opt.param_groups[0]["params"] = opt.param_groups[0]["params"][1:]

        for change in (shorten, lambda opt: opt.param_groups.reverse(), lambda opt: opt.param_groups.clear()):
            model = network()
            groups = [
                {"params": model[0].parameters()},
                {"params": [*model[2].parameters(), *model[3].parameters()], "lr": 1.0},
            ]
            _, opt = self.make(groups, nearstep.SGD, lr=0.1, path=self.folder / f"state-{len(self.opened)}", config={})
            take_step(model, opt, 0)
            change(opt)
            self.refuses(RuntimeError, "parameter groups", lambda: take_step(model, opt, 1))

    def test_parts_that_take_turns(self):
        def loop(model, optimizer, step):
            parts = (model[0], model[2], model[3])
            if step % 3 == 2:
                model.requires_grad_(True)
                loss = backward(model, step)
            else:
                for trained in parts[: 2 + step % 2]:
                    model.requires_grad_(False)
                    trained.requires_grad_(True)
                    loss = backward(model, step)
            model.requires_grad_(step % 2 == 0)
            optimizer.step()
            model.requires_grad_(True)
            optimizer.zero_grad()
            return loss

        self.compare(loop, steps=8, cls="Adam", lr=1e-3)
        self.compare(loop, steps=8, cls="Adam", lr=1e-3, accumulation=1)

    def test_skipped_steps_are_said(self):
        script = (
            "import torch, nearstep, sys\nmodel = torch.nn.Linear(8, 8)\nopt = nearstep.AdamW(model, "
            "path=sys.argv[1])\nfor step in range(30):\n"
            "    loss = model(torch.ones(1, 8)).sum()\n    (loss if step < 5 else loss * float('nan')).backward()\n  "
            "  opt.step()\n    opt.zero_grad()\nopt.close()\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, self.folder / "nan"],
            env=launcher.environment(),
            text=True,
            capture_output=True,
            check=True,
        )
        lines = [line for line in done.stderr.splitlines() if "skipped" in line]
        self.assertRegex(lines[0], r"[1-4] steps? (was|were) skipped")  # it is seen when the step has ended
        self.assertLess(len(lines), 8)


if __name__ == "__main__":
    launcher.main()
