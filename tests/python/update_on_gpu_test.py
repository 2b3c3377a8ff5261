"""A GPU that updates state in memory writes new parameters to the model itself, with the bits of an update by the host,
whatever the program does with its parameters. One process, one rank; NEARSTEP_TEST_DEVICE=cuda: on a GPU, with
NEARSTEP_SCRATCH in memory. Else the host updates in both runs, and the test shows that the programs below are
repeatable."""

import unittest

import launcher
from package import Package

import nearstep
import torch

DEVICE = launcher.DEVICE
STEPS = 16  # with the GPU's help, which begins when the state is pinned
MOST = 3000


def network(width):
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh()) for _ in range(3)]
    return torch.nn.Sequential(*layers).to(DEVICE, torch.bfloat16)


def backward(model, number, factor=1.0):
    width = model[0][0].in_features
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(number)).to(DEVICE, torch.bfloat16)
    (factor * (model(x) - 1).square().mean()).backward()


def drop(model, opt, number):
    backward(model, number)
    opt.zero_grad()


def skip(model, opt, number):
    backward(model, number, torch.inf)
    opt.step()


def write(model, opt, number):
    backward(model, number)
    opt.step()
    with torch.no_grad():
        model[1][0].weight.mul_(0.99)


def write_and_move(model, opt, number):
    write(model, opt, number)
    model[1][0].weight.data = model[1][0].weight.data.clone()


def move(model, opt, number):
    backward(model, number)
    opt.step()
    for p in model.parameters():
        p.data = p.data.clone()


def swap(model, opt, number):
    """Swaps parameters for others and back, as the evaluation of an average of parameters does."""
    backward(model, number)
    opt.step()
    kept = [p.data.clone() for p in model.parameters()]
    for p in model.parameters():
        p.data = p.data * 0.5
    for p, value in zip(model.parameters(), kept):
        p.data = value


def freeze(model, opt, number):
    model[2][0].weight.requires_grad_(number % 3 > 0)
    backward(model, number)
    opt.step()


def save(model, opt, number):
    backward(model, number)
    opt.step()
    opt.save()


def read_at_once(model, opt, number):
    """Every parameter, by the program's own stream."""
    backward(model, number)
    opt.step()
    if DEVICE == "cpu":
        return [p.detach().clone() for p in model.parameters()]
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        read = [p.detach().clone() for p in model.parameters()]
    torch.cuda.current_stream().wait_stream(stream)
    return read


def step(model, opt, number):
    backward(model, number)
    opt.step()


class UpdateOnGpu(Package):
    def begin(self, make, settings, config):
        settings = {
            "state": "compact",
            "codec": "q4",
            "clip_norm": 1e-3,
            "lr": 1e-2,
            "devices": 2,
            "path": self.folder / f"state-{len(self.opened)}",
            **settings,
        }
        return self.make(make(), config=config, **settings)

    def train_helped(self, model, opt, counter):
        """Steps, until the GPU has helped in some. Returns how many."""
        helped = steps = 0
        while helped < STEPS and steps < (MOST if DEVICE == "cuda" else STEPS):
            step(model, opt, steps)
            opt.finish()
            helped += opt.stats()["bytes"][counter] > 0
            opt.zero_grad()
            steps += 1
        self.assertEqual(helped, STEPS if DEVICE == "cuda" else 0)
        return steps

    def compare(self, *ways, of_host=None, make=lambda: network(256), passes=1, **settings):
        """``ways``: what the program does in the steps, one after the other; ``of_host``: what it does where the host
        updates.
        """
        runs = [
            self.begin(make, {"accumulation": passes, **settings}, config) for config in ({}, {"csd.device": "host"})
        ]
        helped, number = 0, 0
        while helped < STEPS and number < (MOST if DEVICE == "cuda" else STEPS):
            read = []
            for (model, opt), way in zip(runs, (ways, of_host or ways)):
                for more in range(1, passes):
                    backward(model, more * MOST + number)
                read.append(way[number % len(way)](model, opt, number) or [])
                opt.zero_grad()
            for one, other in zip(*read, strict=True):
                self.assertTrue(torch.equal(one, other), f"step {number}")
            for _, opt in runs:
                opt.finish()
                opt.synchronize()
            helped += runs[0][1].stats().get("bytes", {}).get("gpu_parameters", 0) > 0
            self.assert_equal_tensors(runs[0][0].named_parameters(), runs[1][0].named_parameters())
            number += 1
        self.assertEqual(helped, STEPS if DEVICE == "cuda" else 0)
        digests = {opt.masters_digest() for _, opt in runs}
        self.assertEqual(len(digests), 1)
        for _, opt in runs:
            opt.close()
        self.assert_equal_tensors(runs[0][0].named_parameters(), runs[1][0].named_parameters())

    def test_formats_and_widths(self):
        for width, state in (
            (256, "compact"),
            (270, "compact"),
            (270, "fp32"),
        ):  # 270: tensors that are not aligned to each other
            with self.subTest(width=width, state=state):
                self.compare(step, make=lambda: network(width), state=state)

    def test_what_programs_do(self):
        for ways in (
            (step, drop),
            (step, write),
            (step, move),
            (step, swap),
            (step, freeze),
            (step, save),
            (read_at_once,),
        ):
            with self.subTest(ways[-1].__name__):
                self.compare(*ways)

    def test_a_write_before_a_move(self):
        self.compare(step, write_and_move, of_host=(step, write))

    def test_a_graph_of_old_values_cannot_be_used(self):
        model, opt = self.begin(lambda: network(256), {}, {})
        for number in range(STEPS):
            loss = (model(torch.ones(4, 256, device=DEVICE, dtype=torch.bfloat16)) - 1).square().mean()
            loss.backward(retain_graph=True)
            opt.step()
            opt.finish()
            opt.synchronize()
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss.backward()
            opt.zero_grad()

    @unittest.skipIf(DEVICE == "cpu", "counts the memory of a GPU")
    def test_memory_that_a_model_left_is_free(self):
        model, opt = self.begin(lambda: network(256), {}, {})
        step(model, opt, 0)
        opt.synchronize()
        before = torch.cuda.memory_allocated()
        for p in model.parameters():
            p.data = p.data.clone()
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_a_streamed_model(self):
        model, opt = self.begin(lambda: network(256), {"stream": nearstep.Stream(slots=2)}, {})
        self.train_helped(model, opt, "gpu_state_write")

    def test_skipped_steps(self):
        self.compare(step, step, skip)

    def test_several_backward_passes(self):
        self.compare(step, write, passes=3)

    def test_kept_gradients(self):
        self.compare(step, write, keep_gradients=True, accumulation=None)

    def test_tied_weights(self):
        def tied():
            model = network(256)
            model[1][0].weight = model[0][0].weight
            return model

        self.compare(step, make=tied)

    def test_a_part_that_is_trained(self):
        def partly():
            model = network(256)
            model[0].requires_grad_(False)
            return model

        self.compare(step, make=partly)

    def test_a_resumed_run(self):
        model, opt = self.begin(lambda: network(256), {"durability": "step"}, {})
        steps = self.train_helped(model, opt, "gpu_parameters")
        digest = opt.masters_digest()
        kept = [(name, p.detach().clone()) for name, p in model.named_parameters()]
        opt.close()
        model, opt = self.make(
            network(256),
            state="compact",
            codec="q4",
            clip_norm=1e-3,
            lr=1e-2,
            devices=2,
            path=self.folder / "state-0",
            config={},
        )
        self.assertEqual(opt.resume(), steps)
        self.assert_equal_tensors(model.named_parameters(), kept)
        self.assertEqual(opt.masters_digest(), digest)


if __name__ == "__main__":
    launcher.main()
