"""Tests that what an ordinary PyTorch loop does to a streamed model has the same effect as under torch.optim, or raises
at that line. Layers are in the host's memory or in storage. One process, one rank."""

import copy
import pickle
import random

import launcher
from plain_loop import WIDTH, Loop, batch, network, take_step

import numpy
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import nearstep
from nearstep._streaming.left import refuse_on_host

STREAMS = {"memory": nearstep.Stream(slots=2), "storage": nearstep.Stream(slots=2, host_memory_gb=8)}


def evaluated(model):
    with torch.no_grad():
        return model(batch(99)).square().mean()


def values_of(tensors):
    return sum(one.detach().double().square().sum() for one in tensors)


def data(model, _):
    for p in model.parameters():
        p.data = p.data * 0.9


def vector(model, _):
    values = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.nn.utils.vector_to_parameters(values * 0.9, model.parameters())


def swapped_in_and_out(model, _):
    own = [p.data for p in model.parameters()]
    for p in model.parameters():
        p.data = p.data * 0.5
    seen = evaluated(model)
    for p, value in zip(model.parameters(), own):
        p.data = value
    return seen


def written_evaluated_and_read(model, _):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.9)
    return evaluated(model), values_of(model.parameters()), evaluated(model)


def set_(model, step):
    if step == 1:
        with torch.no_grad():
            model[3][0].weight.set_(torch.full((WIDTH, WIDTH), 0.01))


def swap_tensors(model, step):
    if step == 1:
        torch.utils.swap_tensors(model[3][0].weight, torch.nn.Parameter(torch.full((WIDTH, WIDTH), 0.01)))


def after_step(write):
    def loop(model, optimizer, step):
        loss = take_step(model, optimizer, step)
        seen = write(model, step)
        return (loss, *(seen if isinstance(seen, tuple) else [] if seen is None else [seen]))

    return loop


def partly_frozen():
    model = network()
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)
    model[3][0].weight.requires_grad_(False)
    return model


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fails):
        ctx.fails = fails
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise ArithmeticError
        return gradient, None


class Drawn(torch.nn.Module):
    """Stochastic depth by generators that are not PyTorch's."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.linear(x).tanh() * (random.random() < 0.5 or numpy.random.rand() < 0.3)


def draw(model, optimizer, step):
    random.seed(step)
    numpy.random.seed(step)
    return take_step(model, optimizer, step), random.random(), numpy.random.rand()


class StreamLoops(Loop):
    def each(self, loop, **settings):
        for name, stream in STREAMS.items():
            with self.subTest(name):
                ours, opt = self.compare(loop, stream=stream, **settings)
                opt.save()
                opt.close()

    def test_parameters_that_are_written_between_steps(self):
        for write in (data, vector, swapped_in_and_out, written_evaluated_and_read, set_, swap_tensors):
            with self.subTest(write.__name__):
                self.each(after_step(write), cls="Adam", lr=1e-3)

    def test_inference_mode_anywhere(self):
        def loop(model, optimizer, step):
            with torch.inference_mode():
                before = model(batch(99)).square().mean()  # also the first forward of all
            (loss := (model(batch(step)) - 1).square().mean()).backward()
            with torch.inference_mode():
                optimizer.step()
                found = (
                    before,
                    loss,
                    model[2](batch(98)).sum(),
                    values_of(model.parameters()),
                    model(batch(99)).square().mean(),
                )
                optimizer.zero_grad()
            return tuple(one.clone() for one in found)

        for stream in (None, nearstep.Stream(slots=4), *STREAMS.values()):
            with self.subTest(slots=stream and stream.slots, host_memory_gb=stream and stream.host_memory_gb):
                self.compare(loop, steps=4, stream=stream)[1].close()

    def test_layers_draw_the_same_numbers_again(self):
        def make():
            torch.manual_seed(0)
            return torch.nn.Sequential(torch.nn.Sequential(*(Drawn() for _ in range(4))), torch.nn.Linear(WIDTH, WIDTH))

        self.each(draw, make=make)

    def test_parameters_that_are_read_between_steps(self):
        reads = {
            "type": lambda p: p.type(torch.float64),
            "parameter": torch.nn.Parameter,
            "functionalize": torch.func.functionalize(torch.square),
            "make_fx": lambda p: make_fx(torch.square)(p)(p),
        }
        for name, read in reads.items():
            with self.subTest(name):
                self.each(after_step(lambda model, _: tuple(read(p).detach() for p in model.parameters())), steps=3)
        for stream in STREAMS.values():
            model, opt = self.make(
                network(),
                nearstep.SGD,
                lr=0.1,
                path=self.folder / f"state-{len(self.opened)}",
                config={},
                stream=stream,
            )
            take_step(model, opt, 0)
            shown = [repr(p) for p in model.parameters()]
            opt.finish()
            self.assertEqual(shown, [repr(torch.nn.Parameter(p.detach())) for p in model.parameters()])
            opt.close()

    def test_what_is_written_after_save(self):
        def loop(model, optimizer, step):
            loss = take_step(model, optimizer, step)
            for _ in range(2):
                with torch.no_grad():
                    for p in model.parameters():
                        p.mul_(0.9)
                if isinstance(optimizer, nearstep.SGD):
                    optimizer.save()
            return loss, values_of(model.parameters())

        self.each(loop)

    def test_frozen_parameters_that_are_written_between_steps(self):
        def merged(model, _):
            with torch.no_grad():
                for p in model.parameters():
                    p.data += 0.01
                seen = evaluated(model)
                for p in model.parameters():
                    p.data -= 0.01
            return seen, evaluated(model), values_of(model.parameters())

        for write in (data, swapped_in_and_out, merged, written_evaluated_and_read):
            with self.subTest(write.__name__):
                self.each(after_step(write), make=partly_frozen)

    def test_batches_that_are_dropped_after_an_error_in_backward(self):
        def loop(model, optimizer, step):
            x = model[1](model[0](batch(step)))
            loss = (model[3](Fails.apply(model[2](x), step in (2, 4))) - 1).square().mean()
            try:
                loss.backward()
                optimizer.step()
            except ArithmeticError:
                pass
            model.zero_grad()
            return loss, evaluated(model)

        self.each(loop)

    def test_checkpoints_of_the_program_around_layers(self):
        def loop(model, optimizer, step):
            x = batch(step)
            for layer in model:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            loss = (x - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        self.each(loop)

    def refuses_in(self, stream, stated, use, begin=True):
        model = network()
        _, opt = self.make(
            model, nearstep.SGD, lr=0.1, path=self.folder / f"state-{len(self.opened)}", config={}, stream=stream
        )
        take_step(model, opt, 0)
        if begin:
            (model(batch(1)) - 1).square().mean().backward()
        self.refuses(
            RuntimeError, stated, lambda: use(model, (None if begin else (model(batch(1)) - 1).square().mean()))
        )
        opt.close()

    def test_a_forward_between_backward_and_step_is_refused(self):
        self.refuses_in(STREAMS["memory"], ("between two steps", "accumulation=N"), lambda model, _: evaluated(model))
        for stream in STREAMS.values():
            self.refuses_in(stream, ("between two steps", "accumulation=N"), lambda model, _: model(batch(2)))

    def test_what_autograd_cannot_see_is_refused(self):
        scaled = lambda model, _: torch.func.functional_call(
            model, {name: 0.9 * p for name, p in model.named_parameters()}, batch(2)
        )  # noqa: E731
        one = lambda model, _: torch.func.grad(lambda x: model(x).sum())(batch(2))  # noqa: E731
        uses = {
            "torch.autograd.grad": lambda model, loss: torch.autograd.grad(loss, model[0].weight, allow_unused=True),
            "backward(inputs": lambda model, loss: loss.backward(inputs=list(model[0].parameters())),
            "functional_call": scaled,
            "torch.func": one,
            "pickled": lambda model, _: pickle.dumps(model),
            "became torch.float64": lambda model, _: model.double()(batch(2).double()),
            "became torch.bfloat16": lambda model, _: evaluated(model.bfloat16()[3]),
            "cannot be traced": lambda model, _: torch.jit.trace(model, batch(2)),
            "or exported": lambda model, _: torch.export.export(model, (batch(2),)),
        }
        for stated, use in uses.items():
            with self.subTest(stated):
                self.refuses_in(STREAMS["memory"], stated, use, begin=False)

    def test_traced_layers_are_refused(self):
        layers = torch.nn.ModuleList(torch.jit.trace(layer, batch(0)) for layer in network())
        self.refuses(ValueError, "torch.jit.trace()", lambda: self.make(layers, stream=STREAMS["memory"]))

    def test_layers_that_are_left_in_host_memory_say_so_on_a_gpu(self):
        model = network()
        settings = {"lr": 0.1, "config": {}, "stream": STREAMS["memory"]}
        _, opt = self.make(model, nearstep.SGD, path=self.folder / "first", **settings)
        take_step(model, opt, 0)
        opt._session.streaming._device = torch.device(
            "cuda", 0
        )  # the end of a stream on a GPU, which "meta" stands for below
        opt.close()
        for one in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
            self.refuses(RuntimeError, ("Linear", "host memory", "model.cuda()"), lambda: one(batch(1).to("meta")))
            self.assertEqual(one(batch(1)).shape, (4, WIDTH))
        self.assertEqual(copy.deepcopy(model).to("meta")(batch(1).to("meta")).shape, (4, WIDTH))
        _, opt = self.make(model, nearstep.SGD, path=self.folder / "second", **settings)
        self.assertFalse(any(refuse_on_host in layer._forward_pre_hooks.values() for layer in model))
        take_step(model, opt, 1)

    def test_memory_that_is_replaced_is_said(self):
        def share(model, _):
            model.share_memory()
            model(batch(2)).sum().backward()

        self.refuses_in(STREAMS["memory"], "share_memory()", share, begin=False)


if __name__ == "__main__":
    launcher.main()
