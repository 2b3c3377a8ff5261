"""Layers of a streamed model that keep their activations, as many as a pretended GPU has room for, have the bits of
those that compute again. One process, one rank."""

import contextlib
import copy
import functools
import io
import re
import unittest.mock

import launcher
from stream_test import Runs

import torch

import nearstep
import networks
from nearstep._gradients.room import Memory
from nearstep._streaming import streaming
from nearstep._streaming.keeping import Keeping

LAYERS = 4


class _OfSlot(torch.autograd.Function):
    """A product that keeps a view of its frozen weight beside what autograd saves, as bitsandbytes' 4-bit one does."""

    @staticmethod
    def product(linear, x):
        return _OfSlot.apply(x, linear.weight)

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight.view(-1)
        ctx.shape = weight.shape
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.weight.view(ctx.shape), None


class Kept(Runs):
    def made(self, model, path, layers, passes=1):
        """A run whose pretended GPU has room for the activations of so many layers, after the first step, and the place
        of that.
        """
        _, opt = self.make(
            nearstep.groups(model),
            path=self.folder / path,
            stream=nearstep.Stream(slots=2),
            accumulation=passes,
            config={},
        )
        opt.resume()
        streaming, room = opt._session.streaming, {"allocated": 0, "bytes": 0.0, "entered": 0}

        def measure():
            room["entered"] += 1
            return Memory(int(room["allocated"]), 0, 0, 0, int(room["bytes"]))

        keeping = streaming._keeping = Keeping(measure, lambda memory: memory.reserved + memory.free)
        losses = self.steps(model, opt, 0, 1, passes)
        room["bytes"] = (layers + 0.5) * keeping.mean_bytes
        keeping.decide(0, room["bytes"])
        wants = keeping.wants

        def wanted(number, tensors):  # what a layer keeps stays until its backward
            keeps = wants(number, tensors)
            room["allocated"] += keeping.mean_bytes * keeps
            room["kept"] = room.get("kept", 0) + keeps
            return keeps

        keeping.wants = wanted
        return opt, losses, room

    def goes_on(self, model, opt, room, first, last):
        losses = []
        for step in range(first, last):
            room["allocated"], room["kept"] = room.get("of_program", 0), 0
            losses += self.steps(model, opt, step, step + 1)
        return losses

    def test_any_number_of_layers_that_keep_has_the_same_bits(self):
        for name in ("gpt2", "llama"):
            model = self.model(name, LAYERS)
            expected = self.trained(copy.deepcopy(model), f"again-{name}", nearstep.Stream(slots=2))
            for layers in (0, 1, 3, LAYERS):
                with self.subTest(name, layers=layers):
                    mine = copy.deepcopy(model)
                    opt, losses, room = self.made(mine, f"{name}-{layers}", layers)
                    losses += self.goes_on(mine, opt, room, 1, 4)
                    self.assertEqual(room["kept"], layers)
                    self.assert_equal_runs((losses, opt.masters_digest(), self.weights_after(mine, opt)), expected)

    def test_memory_of_the_programs_own_makes_layers_compute_again(self):
        model = self.model(layers=LAYERS)
        expected = self.trained(copy.deepcopy(model), "again", nearstep.Stream(slots=2))
        opt, losses, room = self.made(model, "less", 3)
        losses += self.goes_on(model, opt, room, 1, 2)
        room["of_program"] = 2 * room["allocated"] / 3
        with contextlib.redirect_stderr(io.StringIO()) as shown:
            losses += self.goes_on(model, opt, room, 2, 4)
        self.assertEqual(room["kept"], 1)
        self.assertEqual(len(re.findall(r"\b2 layers\b", shown.getvalue())), 1)
        self.assert_equal_runs((losses, opt.masters_digest(), self.weights_after(model, opt)), expected)

    def test_layers_keep_less_after_more_than_the_limit_was_reserved(self):
        model = self.model(layers=LAYERS)
        expected = self.trained(copy.deepcopy(model), "again", nearstep.Stream(slots=2))
        opt, losses, room = self.made(model, "less", 3)
        gpu, emptied, streaming_of = {"reserved": 0}, [], opt._session.streaming
        streaming_of._is_limited, streaming_of._settings = True, nearstep.Stream(gpu_memory_gb=1e-3)
        limit, of_two = 10**6 - streaming_of._engine_bytes, int(2 * streaming_of._keeping.mean_bytes)
        with (
            unittest.mock.patch.object(streaming, "memory_of", lambda _: Memory(0, 0, gpu["reserved"], 0, 10**9)),
            unittest.mock.patch.object(torch.cuda, "empty_cache", lambda: emptied.append(gpu["reserved"])),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            for step, reserved, kept in ((1, limit, 3), (2, limit + of_two, 1), (3, limit, 1)):
                gpu["reserved"] = reserved
                losses += self.goes_on(model, opt, room, step, step + 1)
                self.assertEqual(room["kept"], kept)
        self.assertEqual(emptied, [limit + of_two])
        self.assert_equal_runs((losses, opt.masters_digest(), self.weights_after(model, opt)), expected)

    def test_a_layer_whose_graph_holds_its_slot_computes_again(self):
        """An evaluation between forward and backward leaves layers in other slots than the forward."""
        model = self.model("llama", 3)
        for layer in model.model.layers[:2]:
            layer.mlp.down_proj.weight.requires_grad_(False)
            layer.mlp.down_proj.forward = functools.partial(_OfSlot.product, layer.mlp.down_proj)

        def ends(model, opt):
            for number in range(1, 3):
                batch = networks.inputs("llama", 2, torch.Generator().manual_seed(number))
                loss = model(**batch).loss
                with torch.no_grad():
                    model(**batch)
                networks.descend(loss, opt)
                room["allocated"] = 0
            return opt.masters_digest(), self.weights_after(model, opt)

        again = copy.deepcopy(model)
        opt, _, room = self.made(again, "again", layers=0)
        expected = ends(again, opt)
        opt, _, room = self.made(model, "of slot", layers=3)
        digest, weights = ends(model, opt)
        self.assertEqual(digest, expected[0])
        self.assert_equal_tensors(weights, expected[1])
        self.assertEqual(room["kept"], 2)  # one layer, in two steps

    def test_what_leaves_a_layer_that_keeps_has_no_gradient_and_backward_runs_once(self):
        model = self.model(layers=LAYERS)
        opt, _, room = self.made(model, "refused", LAYERS, passes=2)
        kept = []
        handle = model.transformer.h[1].mlp.register_forward_hook(lambda module, given, output: kept.append(output))
        batch = networks.inputs("gpt2", 2, torch.Generator().manual_seed(1))
        loss = model(**batch).loss
        self.refuses(RuntimeError, ("transformer.h.1", "detach()", "stream="), kept[0].square().sum().backward)
        handle.remove()
        loss.backward(retain_graph=True)
        self.refuses(RuntimeError, 'Stream(activations="gpu")', loss.backward)
        opt.zero_grad()


if __name__ == "__main__":
    launcher.main()
