"""What an ordinary PyTorch loop does to gradients, parameters and buffers: nearstep does the same, or raises at that line.
Each test trains a copy under torch.optim and compares. One process, one rank; NEARSTEP_TEST_DEVICE=cuda: on a GPU."""
import contextlib
import copy
import gc
import io
import os
import pathlib
import pickle
import subprocess
import sys
import unittest
import weakref

import launcher
from bad_input_test import Package

ABSENT = launcher.missing(*launcher.NEEDED)
if not ABSENT:
    import torch
    from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm  # before the optimizer is made, as scripts do

    import nearstep

WIDTH = 270  # a layer has more than one tile
DEVICE = os.environ.get("NEARSTEP_TEST_DEVICE", "cpu")
ABSENT = ABSENT or ("" if DEVICE == "cpu" or torch.cuda.is_available() else "there is no GPU")


def layers():
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()),
                               torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH)))


def network(seed=0):
    torch.manual_seed(seed)
    return layers().to(DEVICE)


def batch(step):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step)).to(DEVICE)


def backward(model, step):
    loss = (model(batch(step)) - 1).square().mean()
    loss.backward()
    return loss


@unittest.skipIf(ABSENT, ABSENT)
class PlainLoop(Package):
    def compare(self, loop, steps=6, rtol=1e-4, cls="SGD", lr=0.1, make=network, params=lambda model: model, **settings):
        """``loop(model, optimizer, step)`` returns what shall be equal."""
        theirs, ours = make().to(DEVICE), make().to(DEVICE)
        other = getattr(torch.optim, cls)(theirs.parameters(), lr=lr)
        _, opt = self.make(params(ours), getattr(nearstep, cls), lr=lr, path=self.folder / f"state-{len(self.opened)}", config={}, **settings)
        for step in range(steps):
            want, got = (loop(model, optimizer, step) for model, optimizer in ((theirs, other), (ours, opt)))
            for a, b in zip(want, got, strict=True):
                torch.testing.assert_close(torch.as_tensor(b).cpu(), torch.as_tensor(a).cpu(), rtol=rtol, atol=1e-5, msg=lambda text: f"step {step}: {text}")
        for (name, p), q in zip(theirs.named_parameters(), ours.parameters()):
            torch.testing.assert_close(q, p, rtol=rtol, atol=1e-5, msg=lambda text: f"{name}: {text}")
        return ours, opt

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
                lambda: clip_grad_norm_(params, 1.0), lambda: clip_grad_value_(params, 1.0), lambda: get_total_norm([p.grad for p in params]),
                lambda: p.grad.norm(), lambda: p.grad.mul_(0.5), lambda: p.grad + 1, lambda: p.grad.clone(), lambda: p.grad.data, lambda: p.grad.detach(),
                lambda: p.grad.isnan().any(), lambda: p.grad[0], lambda: p.grad.cpu().numpy(), lambda: p.grad.tolist(), lambda: p.grad.copy_(torch.ones_like(p)),
                lambda: torch._foreach_mul_([p.grad for p in params], 0.5), lambda: torch.nn.utils.parameters_to_vector([p.grad for p in params]),
                lambda: copy.deepcopy(p.grad), lambda: pickle.dumps(p.grad), lambda: p.grad.view(-1), lambda: p.grad.data_ptr(),
                lambda: setattr(p.grad, "data", torch.ones_like(p)), lambda: torch.stack([p.grad]), lambda: p.grad.untyped_storage(),
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
            return (loss.detach(),)

        _, opt = self.compare(loop)
        wanted, got = (torch.stack([norm.cpu() for pair in norms[which::2] for norm in pair]) for which in (0, 1))
        self.assertLess(0.05, min(wanted), "every step is clipped")
        opt.finish()
        torch.testing.assert_close(opt.stats()["norm"], float(wanted[-1]), rtol=1e-4, atol=0)
        self.assertEqual(float(got[0]), 0)
        for number, norm in enumerate(got[2:], 2):
            self.assertLess(abs(wanted[number - 2:number] - norm).min(), 1e-4, "of the last finished step, which is one of the two before")
        self.assertEqual(opt.steps, 12)

    def test_clipping_by_pytorch_that_cannot_be_taken_over(self):
        model, opt = self.make(network())
        other = network()
        params = list(model.parameters())
        backward(model, 0)
        backward(other, 0)
        clip = torch.nn.utils.clip_grad_norm_
        for use in (lambda: clip(params[1:], 1.0), lambda: clip(params + list(other.parameters()), 1.0), lambda: clip(params, 1.0, norm_type=1)):
            self.refuses(RuntimeError, "pass clip_norm=... to each optimizer", use)
        clip(params, 1.0, foreach=False)
        clip(params, float("inf"))
        self.refuses(RuntimeError, "make the optimizer with clip_norm=2", lambda: clip(params, 2.0))
        opt.step()
        opt.zero_grad()
        backward(model, 1)
        self.refuses(RuntimeError, "make the optimizer with clip_norm=1, which clips every step", opt.step)
        clip(params, 1.0)
        opt.step()
        opt.close()
        model, opt = self.make(network(), accumulation=1, path=self.folder / "another")
        backward(model, 0)
        self.refuses(RuntimeError, "make the optimizer with clip_norm=1", lambda: clip(model.parameters(), 1.0))

    def test_a_gradient_that_replaces_one_that_has_left(self):
        model, opt = self.make(network())
        for step in range(2):
            backward(model, step)
            if step == 1:
                for p in model.parameters():
                    p.grad = torch.ones_like(p)
                self.refuses(RuntimeError, "p.grad was set", opt.step)
                opt.zero_grad()
                backward(model, step)
            opt.step()
            opt.zero_grad()
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
            return (loss.detach(),)

        self.compare(loop, keep_gradients=True)

    def test_gradients_that_the_program_computes_itself(self):
        def loop(model, optimizer, step):
            loss = (model(batch(step)) - 1).square().mean()
            for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
                p.grad = g * 2
            optimizer.step()
            optimizer.zero_grad()
            return (loss.detach(),)

        self.compare(loop)

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
            return loss.detach(), seen, stands

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
            return (loss.detach(),)

        self.compare(loop, steps=10)

    def test_conversions_that_change_nothing_while_gradients_are_gone(self):
        def loop(model, optimizer, step):
            optimizer.zero_grad()
            loss = backward(model, step)
            optimizer.step()
            model.to(DEVICE).to(torch.float32).float()
            return (loss.detach(),)

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
            return loss.detach(), norm

        self.compare(loop, keep_gradients=True)

    def test_kept_gradients_add_up_over_steps(self):
        def loop(model, optimizer, step):
            loss = backward(model, step)
            optimizer.step()
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            return (loss.detach(),)

        self.compare(loop, lr=0.01, keep_gradients=True)

    def test_gradients_that_an_earlier_step_used(self):
        model, opt = self.make(network())
        backward(model, 0)
        opt.step()
        self.refuses(RuntimeError, "zero_grad() after step()", opt.step)
        backward(model, 1)
        self.refuses(RuntimeError, "zero_grad() after step()", opt.step)
        opt.zero_grad()
        backward(model, 2)
        opt.step()
        self.assertEqual(opt.steps, 2)

    def test_zeroed_gradients_count_as_zero(self):
        def loop(model, optimizer, step):
            loss = backward(model, step) if step != 3 else torch.zeros(())
            optimizer.step()
            (optimizer if step % 2 else model).zero_grad(set_to_none=False)
            return (loss.detach(),)

        self.compare(loop, cls="Adam", lr=1e-3)

    def test_batches_that_are_dropped(self):
        for drop in (lambda model, optimizer: model.zero_grad(), lambda model, optimizer: optimizer.zero_grad(), lambda model, optimizer: model.zero_grad(set_to_none=False),
                     lambda model, optimizer: [setattr(p, "grad", None) for p in model.parameters()]):
            def loop(model, optimizer, step):
                (9 * model(batch(99)).square().sum()).backward()
                drop(model, optimizer)
                loss = backward(model, step)
                optimizer.step()
                optimizer.zero_grad()
                return (loss.detach(),)

            _, opt = self.compare(loop, steps=4)
            self.assertEqual(opt.steps, 4)

    def test_a_step_that_was_given_up_leaves_no_trace(self):
        for settings in ({}, {"clip_norm": 0.1}, {"codec": "q4"}, {"config": {"csd.subgroup_tiles": 1}}, {"state": "compact"}, {"accumulation": 1}):
            digests = []
            for drops in (False, True):
                model, opt = self.make(network(), path=self.folder / f"{len(self.opened)}", **{"config": {}, **settings})
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
                    backward(model, step)
                    opt.step()
                    opt.zero_grad()
                self.assertEqual(opt.steps, 4)
                digests.append(opt.masters_digest())
                opt.close()
            self.assertEqual(*digests, settings)

    def test_an_error_in_backward(self):
        def loop(model, optimizer, step):
            handle = model[0].register_full_backward_hook(lambda *_: {}["no"]) if step == 3 else None
            try:
                loss = backward(model, step)
                optimizer.step()
            except KeyError:
                loss = torch.zeros(())
            if handle:
                handle.remove()
            optimizer.zero_grad()
            return (loss.detach(),)

        self.compare(loop)

    def test_generator_and_discriminator(self):
        for passes in (1, 2):
            results = []
            for make in (lambda net, name: torch.optim.Adam(net.parameters(), lr=1e-3), lambda net, name: self.make(net, nearstep.Adam, path=self.folder / f"{name}{passes}")[1]):
                generator, discriminator = network(1), network(2)
                optimizer_g, optimizer_d = make(generator, "g"), make(discriminator, "d")
                for step in range(5):
                    discriminator.zero_grad()
                    fake = generator(batch(step))
                    losses = [(discriminator(batch(10 + step)) - 1).square().mean(), discriminator(fake.detach()).square().mean()]
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
            return (loss.detach(),)

        self.compare(loop, steps=8, cls="Adam", lr=1e-3)
        self.compare(loop, steps=8, cls="Adam", lr=1e-3, accumulation=1)

    def test_parameters_without_a_gradient_keep_their_state(self):
        def loop(model, optimizer, step):
            used = model if step % 2 else torch.nn.Sequential(model[0], model[1], model[3])
            loss = backward(used, step)
            optimizer.step()
            optimizer.zero_grad()
            return (loss.detach(),)

        # A small rate: where a gradient is all rounding, Adam goes either way by it.
        self.compare(loop, steps=8, cls="Adam", lr=1e-4)

    def test_a_model_that_was_empty_is_written_swapped_and_dropped(self):
        for backward_passes in (None, 1):
            theirs = network()
            with nearstep.empty(DEVICE):
                ours = layers()
            _, opt = self.make(ours, nearstep.SGD, lr=0.1, path=self.folder / str(backward_passes), accumulation=backward_passes)
            opt.resume()
            ours.load_state_dict(theirs.state_dict())
            for model, optimizer in ((theirs, torch.optim.SGD(theirs.parameters(), lr=0.1)), (ours, opt)):
                for step in range(6):
                    backward(model, step)
                    if step % 3 == 2:
                        model.zero_grad()
                        continue
                    optimizer.step()
                    optimizer.zero_grad()
                    with torch.no_grad():
                        for p in model.parameters():
                            p.clamp_(-0.03, 0.03)
                    kept = [p.data.clone() for p in model.parameters()]
                    for p in model.parameters():
                        p.data = p.data * 0.5
                    for p, value in zip(model.parameters(), kept):
                        p.data = value
                    torch.autograd.grad(model(batch(step)).sum(), list(model.parameters()))
            for p, q in zip(theirs.parameters(), ours.parameters()):
                torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5)

    def test_a_closure(self):
        def loop(model, optimizer, step):
            def closure():
                optimizer.zero_grad()
                return backward(model, step)

            return (optimizer.step(closure).detach(),)

        self.compare(loop)

    # --- Parameters that one writes and reads ---

    def test_parameters_that_are_written_between_steps(self):
        def average(model, step):
            trained = [p.detach().clone() for p in model.parameters()]
            for p in model.parameters():
                p.data.copy_(p.data * 0.9)
            with torch.no_grad():
                found = model(batch(step)).mean()
            for p, value in zip(model.parameters(), trained):
                p.data = value
            return found

        def renormalise(model, step):
            with torch.no_grad():
                model[0].weight.div_(model[0].weight.norm(dim=1, keepdim=True))

        def clamp(model, step):
            for p in model.parameters():
                p.data.clamp_(-0.03, 0.03)

        def evaluate_then_write(model, step):
            with torch.no_grad():
                model(batch(step))
                for p in model.parameters():
                    p.mul_(0.99)

        def load(model, step):
            if step == 2:
                model.load_state_dict(network(7).state_dict())

        def fill(model, step):
            vector = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
            torch.nn.utils.vector_to_parameters(vector * 0.98, model.parameters())

        def initialise(model, step):
            torch.nn.init.constant_(model[3][0].bias, 0.25)

        for write in (average, renormalise, clamp, evaluate_then_write, load, fill, initialise):
            def loop(model, optimizer, step):
                loss = backward(model, step)
                optimizer.step()
                optimizer.zero_grad()
                seen = write(model, step)
                return (loss.detach(), *([] if seen is None else [seen]))

            for params in (lambda model: model, lambda model: model.parameters()):
                with self.subTest(write.__name__):
                    ours, opt = self.compare(loop, cls="Adam", lr=1e-3, params=params)
                    opt.save()
                    opt.close()

    def test_what_is_written_is_durable_and_only_that(self):
        model, opt = self.make(network().to(torch.bfloat16), state="fp32", config={"csd.subgroup_tiles": 1})
        digests = []
        for step in range(4):
            (model(batch(step).bfloat16()) - 1).square().mean().backward()
            opt.step()
            opt.zero_grad()
            digests.append(opt.masters_digest())
            with torch.no_grad():
                kept = [p.clone() for p in model.parameters()]
                for p, value in zip(model.parameters(), kept):
                    p.mul_(0.5)
                    p.copy_(value)
        self.assertEqual(opt.masters_digest(), digests[-1], "a swap and back keeps the masters' last bits")
        with torch.no_grad():
            model[0].bias.fill_(0.5)
        opt.close()
        model, opt = self.make(network().to(torch.bfloat16), state="fp32", config={"csd.subgroup_tiles": 1})
        self.assertEqual(opt.resume(), 4)
        self.assertTrue((model[0].bias == 0.5).all())
        master = opt.state[model[0].weight]["master"]
        self.assertTrue((master != master.bfloat16().float()).any(), "masters of others were not rounded")

    def test_parameters_that_are_read_are_those_of_the_last_step(self):
        reads = {
            "list": lambda model, held: [p.detach().clone() for p in held],
            "data": lambda model, held: [p.data.clone() for p in held],
            "named": lambda model, held: [p.detach().clone() for _, p in model.named_parameters()],
            "state_dict": lambda model, held: [p.clone() for p in model.state_dict().values()],
            "deepcopy": lambda model, held: list(copy.deepcopy(model).parameters()),
            "save": lambda model, held: list(torch.load(saved(model), weights_only=False).parameters()),
            "save_state": lambda model, held: list(torch.load(saved(model.state_dict())).values()),
            "pickle_one": lambda model, held: [pickle.loads(pickle.dumps(p)) for p in held],
            "sum": lambda model, held: [p + 0 for p in held],
            "numpy": lambda model, held: [torch.from_numpy(p.detach().cpu().numpy().copy()) for p in held],
            "vector": lambda model, held: [torch.nn.utils.parameters_to_vector(held)],
            "foreach": lambda model, held: torch._foreach_mul(held, 1.0),
            "function": lambda model, held: [torch.func.functional_call(model, dict(model.named_parameters()), batch(0))],
            "attribute": lambda model, held: [model[2][0].weight.t().contiguous()],
            "averaged": lambda model, held: list(torch.optim.swa_utils.AveragedModel(model).module.parameters()),
            "groups": lambda model, held: [p.detach().clone() for p in held],
        }

        def saved(value):
            file = io.BytesIO()
            torch.save(value, file)
            file.seek(0)
            return file

        for name, read in reads.items():
            held = {}

            def loop(model, optimizer, step):
                if id(model) not in held:
                    held[id(model)] = [p for group in optimizer.param_groups for p in group["params"]]
                loss = backward(model, step)
                optimizer.step()
                optimizer.zero_grad()
                return (loss.detach(), *(one.detach() for one in read(model, held[id(model)])))

            with self.subTest(name):
                self.compare(loop, steps=3)[1].close()

    def test_changes_that_would_be_lost_raise(self):
        model, opt = self.make(network(), nearstep.SGD)
        for step in range(2):
            backward(model, step)
            opt.step()
            opt.zero_grad()

        def goes_on():  # on a GPU it is found out while the next step goes on
            for step in range(1 if DEVICE == "cpu" else 3):
                backward(model, step)
                opt.step()
                opt.zero_grad()
                opt.finish()

        views = [p.data for p in model.parameters()]
        backward(model, 2)
        for p in model.parameters():
            p.data.mul_(0.9)  # when the gradients have left
        opt.step()
        opt.zero_grad()
        self.refuses(RuntimeError, "the change is lost", goes_on)
        backward(model, 3)
        opt.step()
        opt.zero_grad()
        for view in views:
            view.zero_()  # a view from before the step
        if DEVICE == "cpu":  # on a GPU each parameter is said once
            self.refuses(RuntimeError, "the change is lost", goes_on)

    def test_parameters_that_are_written_in_the_forward(self):
        class Embedded(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.table = torch.nn.Embedding(300, WIDTH, max_norm=1.0)
                self.rest = network(1)

            def forward(self, x):
                return self.rest(self.table(x))

        def loop(model, optimizer, step):
            loss = (model(torch.arange(step, 300, 7, device=DEVICE)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return (loss.detach(),)

        self.compare(loop, make=Embedded)

    def test_parameters_of_a_module_whose_own_forward_is_never_called(self):
        def loop(model, optimizer, step):
            loss = (model[1](model[0](batch(step))) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            for p in model.parameters():
                p.data.clamp_(-0.03, 0.03)
            return (loss.detach(),)

        self.compare(loop, make=lambda: torch.nn.ModuleList([network(1), network(2)]))

    def test_transforms_of_functions(self):
        def per_sample(model, step):
            loss = torch.func.grad(lambda params, x: (torch.func.functional_call(model, params, x) - 1).square().mean())
            return torch.func.vmap(loss, in_dims=(None, 0))({name: p.detach() for name, p in model.named_parameters()}, batch(step))["0.bias"]

        uses = {
            "grad": lambda model, step: torch.func.grad(lambda w: (w**3).sum())(model[0].weight),
            "captured": lambda model, step: torch.func.grad(lambda x: (x * model[0].weight).square().sum())(batch(step)[0]),
            "vmap": lambda model, step: torch.func.vmap(lambda w: (w**3).sum())(model[0].weight),
            "jvp": lambda model, step: torch.func.jvp(lambda w: w.square().sum(), (model[0].weight,), (torch.ones_like(model[0].weight),))[1],
            "jacrev": lambda model, step: torch.func.jacrev(lambda x: model(x).sum())(batch(step)[0]),
            "per_sample": per_sample,
        }
        for name, use in uses.items():
            def loop(model, optimizer, step):
                first = use(model, step) if step == 0 else torch.zeros(())
                loss = backward(model, step)
                optimizer.step()
                optimizer.zero_grad()
                return first.detach(), loss.detach(), use(model, step).detach()

            with self.subTest(name):
                self.compare(loop, steps=3, rtol=1e-3)[1].close()

    def test_weight_decay_by_hand_with_kept_gradients(self):
        def loop(model, optimizer, step):
            loss = backward(model, step)
            for p in model.parameters():
                p.data.mul_(0.9)
            optimizer.step()
            optimizer.zero_grad()
            return (loss.detach(),)

        self.compare(loop, keep_gradients=True)

    def test_hooks_that_were_there_before(self):
        def with_hooks():
            model = network()
            torch.nn.utils.prune.l1_unstructured(model[0], "weight", 0.3)
            torch.nn.utils.weight_norm(model[2][0])
            torch.nn.utils.parametrizations.spectral_norm(model[3][0])
            return model

        def loop(model, optimizer, step):
            loss = backward(model, step)
            optimizer.step()
            optimizer.zero_grad()
            return (loss.detach(),)

        import torch.nn.utils.prune  # noqa: F401
        self.compare(loop, make=with_hooks, rtol=1e-3)

    def test_script_modules(self):
        def loop(model, optimizer, step):
            loss = backward(model, step)
            optimizer.step()
            optimizer.zero_grad()
            return (loss.detach(),)

        self.compare(loop, make=lambda: torch.nn.Sequential(torch.jit.script(network(1)), network(2)))
        self.compare(loop, make=lambda: torch.jit.script(network()))
        self.compare(loop, make=lambda: torch.jit.script(network()), params=lambda model: model.parameters())

    def test_compiled_modules_are_not_compiled_again_in_each_step(self):
        for whole in (True, False):
            def make():
                model = network()
                if whole:
                    return torch.compile(model, backend="eager")
                for layer in model:
                    layer.compile(backend="eager")
                return model

            def loop(model, optimizer, step):
                loss = backward(model, step)
                optimizer.step()
                optimizer.zero_grad()
                if step == 2:
                    torch._dynamo.config.error_on_recompile = True
                return (loss.detach(),)

            try:
                self.compare(loop, make=make)
            finally:
                torch._dynamo.config.error_on_recompile = False
                torch._dynamo.reset()

    def test_steps_and_reads_that_are_compiled(self):
        compiled = {}

        def loop(model, optimizer, step):
            if id(model) not in compiled:
                def train(x):
                    optimizer.zero_grad()
                    loss = (model(x) - 1).square().mean()
                    loss.backward()
                    optimizer.step()
                    return loss.detach()

                compiled[id(model)] = (torch.compile(train, backend="eager"), torch.compile(lambda: sum(p.square().sum() for p in model.parameters()), backend="eager"))
            train, read = compiled[id(model)]
            return train(batch(step)), read().detach()

        self.addCleanup(torch._dynamo.reset)
        self.compare(loop, steps=3)

    def test_a_parameter_that_was_replaced(self):
        for replace in (lambda model: setattr(model[0], "weight", torch.nn.Parameter(torch.zeros(WIDTH, WIDTH, device=DEVICE))),
                        lambda model: model.load_state_dict(network(3).state_dict(), assign=True)):
            model, opt = self.make(network(), path=self.folder / f"{len(self.opened)}")
            backward(model, 0)
            opt.step()
            opt.zero_grad()
            replace(model)
            backward(model, 1)
            self.refuses(RuntimeError, "0.", opt.step)
            opt.close()

    # --- Buffers and random generators ---

    def test_buffers_come_back(self):
        class Counts(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = network()
                self.norm = torch.nn.BatchNorm1d(WIDTH)
                self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
                self.register_buffer("scratch", torch.zeros(3), persistent=False)
                self.register_buffer("table", torch.zeros(600, 600))  # larger than what is always kept

            def forward(self, x):
                self.seen += 1
                self.scratch += 1
                if self.seen == 3:
                    self.table.fill_(3.0)
                return self.net(self.norm(x))

        def steps(model, opt, first, last):
            for step in range(first, last):
                backward(model, step)
                opt.step()
                opt.zero_grad()

        torch.manual_seed(0)
        model, opt = self.make(Counts().to(DEVICE))
        steps(model, opt, 0, 4)
        opt.save(self.folder / "kept")
        steps(model, opt, 4, 5)
        saved = opt.save(self.folder / "kept")
        self.assertEqual(len(list((self.folder / "kept").glob("*.program"))), 1)
        steps(model, opt, 5, 6)
        opt.finish()
        whole = {name: value.clone() for name, value in model.state_dict().items()}
        os.sync()
        opt.close()
        torch.manual_seed(0)
        model, opt = self.make(Counts().to(DEVICE))
        self.assertEqual(opt.resume(), 6)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, whole[name]), name)
        self.assertEqual(model.scratch.sum(), 0)
        opt.close()
        torch.manual_seed(0)
        model, opt = self.make(Counts().to(DEVICE), path=self.folder / "from")
        self.assertEqual(opt.resume(saved), 5)
        self.assertEqual((int(model.seen), float(model.table[0, 0])), (5, 3.0))
        steps(model, opt, 5, 6)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, whole[name]), name)

    def test_buffers_of_any_kind_come_back(self):
        def in_inference():
            with torch.inference_mode():
                return torch.ones(600, 600, device=DEVICE)

        starts = {"sparse": lambda: torch.eye(8, device=DEVICE).to_sparse(), "rows": lambda: torch.eye(8, device=DEVICE).to_sparse_csr(), "none": lambda: None, "inference": in_inference,
                  "one_for_all": lambda: torch.ones(1, device=DEVICE).expand(5, 5), "complex": lambda: torch.ones(3, dtype=torch.complex64, device=DEVICE), "meta": lambda: torch.empty(3, device="meta")}

        def make(name):
            model = network()
            model.register_buffer("kept", starts[name]())
            return self.make(torch.nn.Sequential(model), path=self.folder / name)

        for name in starts:
            with self.subTest(name):
                model, opt = make(name)
                if name in ("sparse", "rows", "none"):
                    model[0].kept = torch.full((3,), 2.0, device=DEVICE) if name == "none" else model[0].kept * 2
                if name == "one_for_all":
                    model[0].kept = model[0].kept + 1
                for step in range(2):
                    backward(model, step)
                    opt.step()
                    opt.zero_grad()
                opt.close()
                again, opt = make(name)
                self.assertEqual(opt.resume(), 2)
                if name != "meta":
                    self.assertEqual(again[0].kept.layout, model[0].kept.layout)
                    torch.testing.assert_close(again[0].kept, model[0].kept)

    def test_random_generators_come_back_on_request(self):
        import random

        import numpy

        def steps(model, opt, first, last):
            for step in range(first, last):
                torch.nn.functional.dropout(model(batch(step)), 0.5).square().mean().backward()
                opt.step()
                opt.zero_grad()
            return torch.rand(1, device=DEVICE).item(), torch.rand(1).item(), random.random(), numpy.random.rand()

        def run(name, stops, **settings):
            torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
            model, opt = self.make(network(), path=self.folder / name, **settings)
            torch.manual_seed(2)
            if stops:
                steps(model, opt, 0, 2)
                opt.close()
                model, opt = self.make(network(), path=self.folder / name, **settings)
                torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
                opt.resume()
                found = steps(model, opt, 2, 4)
            else:
                found = steps(model, opt, 0, 4)
            found = (*found, opt.masters_digest())
            opt.close()
            return found

        whole = run("whole", False)
        self.assertEqual(run("stopped", True, keep_random=True), whole)
        self.assertNotEqual(run("others", True), whole)

    def test_another_number_of_threads_is_said_once(self):
        if DEVICE != "cpu":
            self.skipTest("a GPU's arithmetic does not depend on the host's threads")
        threads = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, threads)
        said = []
        for count in (threads, threads + 1, threads + 1):
            torch.set_num_threads(count)
            model, opt = self.make(network())
            with contextlib.redirect_stderr(io.StringIO()) as lines:
                opt.resume()
            said.append("threads per rank before" in lines.getvalue())
            backward(model, 0)
            opt.step()
            opt.close()
        self.assertEqual(said, [False, True, False])

    # --- The state as PyTorch's optimizers show it ---

    def test_the_state_shows_where_it_is(self):
        ours, opt = self.compare(lambda model, optimizer, step: (backward(model, step).detach(), optimizer.step(), optimizer.zero_grad())[:1], cls="Adam", lr=1e-3)
        theirs = network()
        other = torch.optim.Adam(theirs.parameters(), lr=1e-3)
        for step in range(6):
            backward(theirs, step)
            other.step()
            other.zero_grad()
        for p, q in zip(theirs.parameters(), ours.parameters()):
            self.assertEqual(float(opt.state[q]["step"]), 6)
            for name in ("exp_avg", "exp_avg_sq"):
                torch.testing.assert_close(opt.state[q][name], other.state[p][name].cpu(), rtol=1e-3, atol=1e-7)
        for clear in (opt.state.clear, lambda: opt.state.pop(q), lambda: setattr(opt, "state", {})):
            self.refuses(RuntimeError, "fresh=True", clear)
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
        before = opt.steps, opt.masters_digest()
        get_optimizer_state_dict(ours, opt)
        self.assertEqual((opt.steps, opt.masters_digest()), before)
        self.refuses(TypeError, "cannot be copied", lambda: copy.deepcopy(opt))
        self.refuses(TypeError, "cannot be pickled", lambda: pickle.dumps(opt))

    def test_a_saved_state_dict_can_be_loaded_whatever_came_later(self):
        model, opt = self.make(network())
        for step in range(2):
            backward(model, step)
            opt.step()
            opt.zero_grad()
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, self.folder / "saved.pt")
        digest = opt.masters_digest()
        late = opt.state_dict()
        for step in range(2, 4):
            backward(model, step)
            opt.step()
            opt.zero_grad()
        self.refuses(RuntimeError, "before the next step", lambda: pickle.dumps(late)) if not pathlib.Path(late["nearstep"]["checkpoint"]).exists() else None
        torch.save(opt.state_dict(), self.folder / "later.pt")
        other, second = self.make(network(5), path=self.folder / "second")
        second.load_state_dict(torch.load(self.folder / "saved.pt")["optimizer"])
        self.assertEqual((second.steps, second.masters_digest()), (2, digest))
        self.refuses(RuntimeError, "step 2", lambda: opt.load_state_dict(torch.load(self.folder / "saved.pt")["optimizer"]))

    def test_options_that_nearstep_does_not_have(self):
        for cls, option in ((nearstep.AdamW, {"maximize": True}), (nearstep.Adam, {"amsgrad": True}), (nearstep.SGD, {"nesterov": True}), (nearstep.SGD, {"dampening": 0.5}),
                            (nearstep.Adagrad, {"lr_decay": 0.1})):
            model = network()
            self.refuses(TypeError, next(iter(option)), lambda: self.make([{"params": model.parameters(), **option}], cls))
            _, opt = self.make([{"params": model.parameters(), "foreach": True, "name": "all", **dict.fromkeys(option, False)}], cls, path=self.folder / f"{len(self.opened)}")
            backward(model, 0)
            opt.param_groups[0].update(option)
            self.refuses(TypeError, next(iter(option)), opt.step)
            opt.close()

    # --- A process that goes on ---

    def test_an_optimizer_that_is_dropped_leaves_nothing(self):
        def once():
            model, opt = network(), None
            opt = nearstep.AdamW(model, path=self.path, lr=1e-3)
            opt.resume()
            for step in range(2):
                backward(model, step)
                opt.step()
                opt.zero_grad()
            backward(model, 2)
            return weakref.ref(opt)

        def left():
            gc.collect()
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

        self.assertIsNone((once(), gc.collect())[0]())
        before = left()
        for _ in range(3):
            once()
        self.assertEqual(left(), before)
        _, opt = self.make(network())
        self.assertEqual(opt.resume(), 8)

    def test_questions_start_nothing(self):
        _, opt = self.make(network())
        self.assertEqual((opt.stats(), opt.progress()), ({}, "no step yet"))
        opt.finish()
        opt.synchronize()
        self.assertFalse(self.path.exists())

    def test_skipped_steps_are_said(self):
        script = ("import torch, nearstep, sys\nmodel = torch.nn.Linear(8, 8)\nopt = nearstep.AdamW(model, path=sys.argv[1])\nfor step in range(30):\n"
                  "    loss = model(torch.ones(1, 8)).sum()\n    (loss if step < 5 else loss * float('nan')).backward()\n    opt.step()\n    opt.zero_grad()\nopt.close()\n")
        done = subprocess.run([sys.executable, "-c", script, self.folder / "nan"], env=launcher.environment(), text=True, capture_output=True, check=True)
        lines = [line for line in done.stderr.splitlines() if "skipped" in line]
        self.assertRegex(lines[0], r"[1-4] steps? (was|were) skipped")  # it is seen when the step has ended
        self.assertLess(len(lines), 8)


if __name__ == "__main__":
    launcher.main()
