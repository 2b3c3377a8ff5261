"""States of compiled, of checkpointing and of plain models resume each other. One process, one rank."""

import launcher
from package import Package

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import nearstep
import networks


class OfTheProgram(torch.nn.Sequential):
    """A layer with a forward of its own: PyTorch before 2.9 does not compile that of its own Sequential."""

    def forward(self, x):
        return super().forward(x)


class LayerOfParts(torch.nn.Module):
    """A layer with a list inside, as those of diffusers have."""

    def __init__(self, parts):
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x


class Compiled(Package):
    def model(self, how):
        """Compiled at any depth; "eager" is the backend that compiles nothing."""
        model = networks.Layers(3, 64)
        model.head = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        make = lambda module: torch.compile(module, backend="eager")
        if "layers" in how:
            for i in range(3):
                model.layers[i] = make(model.layers[i])
        if "checkpoint" in how:
            for i in range(3):
                model.layers[i] = checkpoint_wrapper(model.layers[i])
        if "head" in how:
            model.head[1] = make(model.head[1])
            model.head = make(model.head)
        return make(model) if "whole" in how else model

    def train(self, how, steps, path, **settings):
        model, opt = self.make(nearstep.groups(self.model(how)), path=self.folder / path, **settings)
        start = opt.resume()
        for step in range(start, start + steps):
            generator = torch.Generator().manual_seed(step)
            whole = self.module_of(opt)
            x, y = torch.randn(2, 8, 64, generator=generator)
            for layer in whole.layers:
                x = layer(x)
            networks.descend(torch.nn.functional.mse_loss(whole.head(x), y), opt)
        digest, names = opt.masters_digest(), list(opt._names)
        opt.close()
        return start, digest, names

    def module_of(self, opt):
        opt.synchronize()  # reads layers beside the whole module's forward
        return opt._module

    def test_every_form_goes_on_from_every_other(self):
        _, digest, names = self.train((), 12, "plain")
        self.assertFalse([name for name in names if "_orig_mod" in name or "wrapped" in name])
        for i, how in enumerate([("whole",), ("layers",), ("head",), ("whole", "layers", "head"), ("checkpoint",), ()]):
            with self.subTest(how=how):
                start, last, own = self.train(how, 2, "parts")
                self.assertEqual((start, own), (2 * i, names))
        self.assertEqual(last, digest)

    def test_start_values_are_the_same(self):
        digests = []
        for how in ((), ("whole", "layers")):
            with nearstep.empty():
                model = self.model(how)
            _, opt = self.make(nearstep.groups(model), path=self.folder / f"empty-{len(digests)}")
            opt.resume()
            digests.append(opt.masters_digest())
        self.assertEqual(*digests)

    def test_compiled_layers_have_the_same_bits_when_they_are_streamed(self):
        def halved(graph, _):  # a backend that shows in the result whether it was used
            return lambda *inputs: tuple(0.5 * one for one in graph.forward(*inputs))

        def trained(stream, is_compiled_before):
            torch._dynamo.reset()
            model = networks.Layers(3, 64)
            model.layers = torch.nn.ModuleList(OfTheProgram(*layer) for layer in model.layers)
            if is_compiled_before:
                for layer in model.layers:
                    layer.compile(backend=halved)
            _, opt = self.make(model, path=self.folder / f"state-{len(self.opened)}", stream=stream)
            if not is_compiled_before:
                for layer in model.layers:
                    layer.compile(backend=halved)
            losses = [networks.descend(model.loss(step), opt) for step in range(3)]
            opt.close()
            return [*losses, model.layers[0]._compiled_call_impl is None]

        wanted = trained(None, True)
        for is_compiled_before in (True, False):
            self.assertEqual(trained(nearstep.Stream(slots=2), is_compiled_before), wanted)

    def test_a_compiled_layer_with_a_list_inside_stays_one_graph(self):
        def graphs(is_wrapped, trains, is_compiled_late=False):
            torch._dynamo.reset()
            found = []  # operations of each graph

            def backend(graph, _):
                found.append(len(graph.graph.nodes))
                return graph.forward

            model = networks.Layers(3, 64)
            model.layers = torch.nn.ModuleList(LayerOfParts(layer) for layer in model.layers)

            def compile_layers():
                for i, layer in enumerate(model.layers):
                    if is_wrapped:
                        model.layers[i] = torch.compile(layer, backend=backend)
                    else:
                        layer.compile(backend=backend)

            if not is_compiled_late:
                compile_layers()
            if trains:
                _, opt = self.make(model, path=self.folder / f"lists-{len(self.opened)}")
                if is_compiled_late:
                    compile_layers()
                networks.descend(model.loss(0), opt)
                opt.close()
            else:
                model.loss(0).backward()
            return found

        for is_wrapped in (False, True):
            wanted = graphs(is_wrapped, trains=False)
            for is_compiled_late in (False, True):
                with self.subTest(is_wrapped=is_wrapped, is_compiled_late=is_compiled_late):
                    self.assertEqual(graphs(is_wrapped, True, is_compiled_late), wanted)


if __name__ == "__main__":
    launcher.main()
