"""Tests what a streamed layer does beside computing its return value from its arguments: what leaves it otherwise,
several uses, and parameters that others have, too. Training has the losses of a resident model, or is refused. One
process, one rank."""

import contextlib

import launcher
from package import Package

import torch

import nearstep
import networks

WIDTH = 48


class Routed(torch.nn.Module):
    """A layer with a router, which gives its logits to ``leave``."""

    def __init__(self, leave, shared=None):
        super().__init__()
        self.router, self.work, self.leave, self.shared = (
            torch.nn.Linear(WIDTH, 4),
            torch.nn.Linear(WIDTH, WIDTH),
            leave,
            shared,
        )
        self.scale = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        logits = self.router(x)
        self.leave(self, x, logits)
        if self.shared is not None:
            x = self.shared(x)
        return x + torch.tanh(self.work(x)) * logits.softmax(-1).amax(-1, keepdim=True) * self.scale


class Model(torch.nn.Module):
    def __init__(self, leave=lambda *_: None, order=(0, 1, 2), shared=None):
        super().__init__()
        torch.manual_seed(4)
        shared = torch.nn.Linear(WIDTH, WIDTH) if shared else None
        self.layers = torch.nn.ModuleList(Routed(leave, shared) for _ in range(3))
        self.order = order

    def forward(self, x):
        for i in self.order:
            x = self.layers[i](x)
        return x


class Given(torch.nn.Module):
    """``use(layer, x, seen)``: what a layer multiplies with, and does to a dictionary that all get."""

    def __init__(self, use):
        super().__init__()
        torch.manual_seed(4)
        self.layers = torch.nn.ModuleList(GivenLayer(use) for _ in range(3))

    def forward(self, x):
        self.seen = {"scale": 3.0, "means": [], "count": torch.zeros(())}
        x = x.clone()
        for layer in self.layers:
            x = layer(x, self.seen)
        return x


class GivenLayer(torch.nn.Module):
    def __init__(self, use):
        super().__init__()
        self.router, self.work, self.use = torch.nn.Linear(WIDTH, 4), torch.nn.Linear(WIDTH, WIDTH), use

    def forward(self, x, seen):
        gain = self.use(self, x, seen)
        return torch.tanh(self.work(x)) * gain


def hooked(part_of, kept):
    """A model in which this part of each layer gives its output to ``kept``."""
    model = Model()
    for layer in model.layers:
        part_of(layer).register_forward_hook(lambda module, arguments, output: kept.append(output))
    return model


def batch(step):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))


def distance(model, step):
    return (model(batch(step)) - 1).square().mean()


class Streamed(Package):
    def losses(self, model, loss_of, stream, steps=3, **settings):
        _, opt = self.make(
            model,
            lr=1e-2,
            path=self.folder / f"{len(self.opened)}",
            stream=nearstep.Stream(slots=2) if stream else None,
            config={},
            **settings,
        )
        losses = [networks.descend(loss_of(model, step), opt) for step in range(steps)]
        opt.close()
        return losses

    def assert_as_resident(self, make, loss_of=distance, **settings):
        want, got = (self.losses(make(), loss_of, stream, **settings) for stream in (False, True))
        for one, other in zip(got, want, strict=True):
            self.assertAlmostEqual(one, other, delta=1e-6)
        return want

    def assert_refused(self, make, loss_of):
        """The loss trains a resident model, and is refused with a streamed one."""
        plain = self.losses(make(), distance, stream=False)
        self.assertNotAlmostEqual(self.losses(make(), loss_of, stream=False)[-1], plain[-1], delta=1e-4)
        message = self.refuses(RuntimeError, ("detach()", "stream="), lambda: self.losses(make(), loss_of, stream=True))
        self.assertRegex(message, r" layers\.\d ")

    def test_what_leaves_other_than_by_the_return_value_gets_no_gradient_in_silence(self):
        kept = []

        def with_kept(model, step):
            kept.clear()
            return distance(model, step) + sum(one.square().mean() for one in kept)

        def with_attributes(model, step):
            return distance(model, step) + sum(layer.aux for layer in model.layers)

        def set_aux(value):
            def leave(layer, x, logits):
                layer.aux = value(layer, x, logits)

            return leave

        cases = {
            "a list": (lambda: Model(lambda layer, x, logits: kept.append(logits)), with_kept),
            "a hook": (lambda: hooked(lambda layer: layer.router, kept), with_kept),
            "an attribute": (lambda: Model(set_aux(lambda layer, x, logits: logits.square().mean())), with_attributes),
            "an operation that saves nothing": (
                lambda: Model(set_aux(lambda layer, x, logits: 0.1 * x.sum())),
                with_attributes,
            ),
        }
        for name, (make, loss_of) in cases.items():
            with self.subTest(name):
                self.assert_refused(make, loss_of)
        with self.subTest("from layer to layer"):

            def pass_on(layer, x, logits):
                layer.work.bias_of_last = kept[-1].mean() if kept else 0.0
                kept.append(logits)

            def through_layers(model, step):
                kept.clear()
                return distance(model, step) + model.layers[2].work.bias_of_last

            self.assert_refused(lambda: Model(pass_on), through_layers)

    def test_a_parameter_read_by_another_way_has_its_gradient_or_is_refused(self):
        def make():
            return Model(lambda layer, x, logits: setattr(layer, "aux", layer.scale.sum()))

        def loss_of(model, step):
            return distance(model, step) + sum(layer.aux for layer in model.layers)

        want = self.losses(make(), loss_of, stream=False)
        with contextlib.suppress(RuntimeError):
            for one, other in zip(self.losses(make(), loss_of, stream=True), want, strict=True):
                self.assertAlmostEqual(one, other, delta=1e-6)

    def test_what_is_only_looked_at_may_leave(self):
        kept = []

        def loss_of(model, step):
            kept.clear()
            loss = distance(model, step)
            self.assertEqual([one.shape for one in kept], 3 * [(8, 4)])
            return loss + 0 * sum(one.detach().mean() for one in kept)

        self.assert_as_resident(lambda: Model(lambda layer, x, logits: kept.append(logits)), loss_of)

    def test_what_layers_do_to_lists_and_dictionaries_reaches_the_program(self):
        def counted(layer, x, seen):
            seen["calls"] = seen.get("calls", 0) + 1
            seen["means"].append(x.detach().mean())
            return seen.pop("scale", 1.0) * seen["calls"]

        def collected(layer, x, seen):
            seen["means"].append(layer.router(x))
            return 1.0

        def loss_of(model, step):
            loss = distance(model, step)
            return loss + sum(one.square().mean() for one in model.seen["means"])

        want = self.assert_as_resident(lambda: Given(counted), loss_of)
        self.assertNotAlmostEqual(want[0], self.losses(Given(lambda *_: 1.0), distance, stream=False)[0], delta=1e-3)
        self.assert_refused(lambda: Given(collected), loss_of)

    def test_an_argument_that_is_changed_in_place_is_refused(self):
        for change in (
            lambda layer, x, seen: x.mul_(2)[0, 0].item(),
            lambda layer, x, seen: seen["count"].add_(1).item(),
        ):
            make = lambda: Given(change)  # noqa: B023, E731
            self.losses(make(), distance, stream=False)
            self.refuses(
                RuntimeError, ("layers.0", "in place", "clone()"), lambda: self.losses(make(), distance, stream=True)
            )  # noqa: B023

    def test_the_first_computation_keeps_no_memory(self):
        are_gone = []

        class Deep(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.work = torch.nn.Linear(WIDTH, WIDTH)

            def forward(self, x):
                storages = []
                for _ in range(3):
                    x = torch.exp(-self.work(x).square())
                    storages.append(torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()))
                are_gone.append([one.expired() for one in storages])
                return x

        model = torch.nn.Sequential(torch.nn.ModuleDict({"a": Deep(), "b": Deep()}))
        model.forward = lambda x: model[0]["b"](model[0]["a"](x))
        _, opt = self.make(model, stream=nearstep.Stream(slots=2))
        model(batch(0)).sum().backward()
        self.assertEqual(are_gone, 2 * [[True, True, False]] + 2 * [[False, False, False]])
        opt.step()

    def test_a_hook_on_the_layer_itself_has_gradients(self):
        kept = []

        def loss_of(model, step):
            kept.clear()
            return distance(model, step) + sum(one.square().mean() for one in kept)

        self.assert_as_resident(lambda: hooked(lambda layer: layer, kept), loss_of)

    def test_layers_are_used_several_times(self):
        for order in ((0, 1, 2, 0, 1, 2, 0), (0, 0, 1, 1, 2, 2), (2, 1, 0, 1, 2)):
            with self.subTest(order=order):
                self.assert_as_resident(lambda: Model(order=order))

    def test_two_forwards_before_a_backward(self):
        """Backward takes both forwards at once, and one after the other; what an earlier step left unused does not
        count."""

        def pair(model, step):
            return (model(batch(step)) - model(batch(step + 10))).square().mean() + model(batch(step)).square().mean()

        self.assert_as_resident(Model, pair)
        forgotten = []

        def with_forgotten(model, step):
            forgotten.append(model(batch(step)).sum())
            return distance(model, step)

        self.assert_as_resident(Model, with_forgotten)
        runs = []
        for stream in (None, nearstep.Stream(slots=2)):
            model, opt = self.make(
                Model(), path=self.folder / f"apart-{len(runs)}", lr=1e-2, stream=stream, accumulation=2, config={}
            )
            for step in range(3):
                losses = [distance(model, step + 10 * i) / 2 for i in range(2)]
                for loss in losses:
                    loss.backward()
                opt.step()
                opt.zero_grad()
            runs.append([loss.item() for loss in losses])
        for one, other in zip(*runs):
            self.assertAlmostEqual(one, other, delta=1e-6)

    def test_gradients_of_a_backward_that_failed_are_not_in_the_next_one(self):
        """The gradients are those of a layer that waits for its other uses."""

        def fail(gradient):
            raise KeyError("a bad batch")

        def loss_of(model, step):
            if step == 1:
                x = model.layers[2](model.layers[1](model.layers[0](batch(step))))
                x.register_hook(fail)
                with self.assertRaises(KeyError):
                    model.layers[1](model.layers[2](x)).sum().backward()
                model.zero_grad()
            return distance(model, step)

        self.assert_as_resident(lambda: Model(order=(0, 1, 2, 2, 1)), loss_of)

    def test_parameters_that_several_layers_have_or_that_are_used_outside(self):
        self.assert_as_resident(lambda: Model(shared=True))

        def outside(model, step):
            x = model.layers[0].shared(batch(step))
            return (model(x) - 1).square().mean() + model.layers[0].shared.weight.square().mean()

        self.assert_as_resident(lambda: Model(shared=True), outside)

        def only_shared():
            model = Model(shared=True)
            for name, p in model.named_parameters():
                p.requires_grad_("shared" in name)
            return model

        want = self.assert_as_resident(only_shared)
        self.assertNotEqual(want[0], want[-1])

    def test_a_gradient_in_parts_needs_accumulation_and_says_so(self):
        def penalised(model, step):
            return distance(model, step) + 1e-2 * sum(p.square().sum() for p in model.parameters())

        message = self.refuses(
            RuntimeError, ("layers.", "penalty", "accumulation=2"), lambda: self.losses(Model(), penalised, stream=True)
        )
        self.assertNotIn("keep_gradients", message, "which streams do not take")
        self.assert_as_resident(Model, penalised, accumulation=2)

    def test_a_model_that_is_frozen_for_a_while_needs_no_gradient(self):
        def loss_of(model, step):
            model.requires_grad_(False)
            self.assertFalse(model(batch(step)).requires_grad)
            model.requires_grad_(True)
            return distance(model, step)

        self.assert_as_resident(Model, loss_of)

    def test_a_model_that_is_converted_after_the_optimizer_is_made(self):
        model = Model()
        _, opt = self.make(model, stream=nearstep.Stream(slots=2), config={})
        model.bfloat16()
        self.refuses(ValueError, ("layers.0", "bfloat16", "before the optimizer is made"), opt.resume)

    def test_gradients_of_chosen_tensors_and_of_gradients_are_refused(self):
        def of_input(model, step, **settings):
            x = batch(step).requires_grad_()
            return torch.autograd.grad(model(x).square().mean(), x, **settings)[0].square().sum()

        self.refuses(
            RuntimeError, ("layers.2", "backward()", "stream="), lambda: self.losses(Model(), of_input, stream=True)
        )
        self.refuses(
            RuntimeError,
            ("layers.2", "backward()", "stream="),
            lambda: self.losses(Model(), lambda *two: of_input(*two, create_graph=True), stream=True),
        )

        def twice(model, step):
            x = batch(step).requires_grad_()
            model(x).square().mean().backward(create_graph=True)
            return x.grad.square().sum()

        self.refuses(RuntimeError, "once_differentiable", lambda: self.losses(Model(), twice, stream=True))

    def test_hooks_of_parameters_see_their_whole_gradient(self):
        def make(shared):
            model = Model(order=(0, 1, 0), shared=shared)
            for p in model.parameters():
                p.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3) * 2)
            return model

        for shared in (False, True):
            self.assert_as_resident(lambda: make(shared))

    def test_a_frozen_layer_that_reads_something_trained_other_than_by_its_arguments(self):
        def make():
            model = Model(lambda layer, x, logits: x.mul_(model.gain) if hasattr(model, "gain") else None)
            for p in model.parameters():
                p.requires_grad_(False)
            model.gain = torch.nn.Parameter(torch.ones(WIDTH))
            return model

        self.refuses(
            RuntimeError,
            "layers.0",
            lambda: self.losses(make(), lambda model, step: model(batch(step)).mean(), stream=True),
        )


if __name__ == "__main__":
    launcher.main()
