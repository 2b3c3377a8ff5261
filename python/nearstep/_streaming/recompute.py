"""Computes a layer twice. Used by streaming.py. The first time its operations keep nothing for a backward, so that only
the second one has gradients; what leaves the first one other than by its return value is known to need a gradient, and
is refused one. Or once, if there is room for what backward needs."""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import inspect
import itertools
import random
import sys
import weakref

import torch

from .._torch_private import current_graph_task_id, is_checkpoint_valid, queue_callback, tree_flatten, tree_unflatten
from . import inputs
from .keeping import Graph

# Arguments about caches of earlier tokens, by the names that Transformers gave them.
_CACHES = {"past_key_values": None, "past_key_value": None, "layer_past": None, "use_cache": False}


def _without_cache(name, value):
    """The argument, or what it is without a cache of earlier tokens: a second computation would add to that again. The
    names have changed with versions, so an object is known by its methods."""
    is_cache = hasattr(value, "get_seq_length") and hasattr(value, "update")
    return None if is_cache else _CACHES.get(name, value)


class _Autocast:
    """Autocast as it is set now, but without its cache, which would keep what passes through slots."""

    def __init__(self, device_type: str):
        self._settings = {
            "device_type": device_type,
            "dtype": torch.get_autocast_dtype(device_type),
            "enabled": torch.is_autocast_enabled(device_type),
            "cache_enabled": False,
        }

    def __call__(self):
        return torch.autocast(**self._settings) if self._settings["enabled"] else contextlib.nullcontext()


def _generators(device: torch.device):
    """How states of the generators from which layers may draw are got and set: PyTorch's, Python's and NumPy's."""
    yield torch.get_rng_state, torch.set_rng_state
    if device.type == "cuda":
        yield (
            functools.partial(torch.cuda.get_rng_state, device),
            functools.partial(torch.cuda.set_rng_state, device=device),
        )
    yield random.getstate, random.setstate
    if "numpy" in sys.modules:
        drawn = sys.modules["numpy"].random
        yield drawn.get_state, drawn.set_state


class _Random:
    """The random generators as they are now."""

    def __init__(self, device: torch.device):
        self._device = device
        self._states = [(setter, getter()) for getter, setter in _generators(device)]

    def _set(self) -> None:
        for setter, state in self._states:
            setter(state)

    @contextlib.contextmanager
    def again(self):
        now = _Random(self._device)
        try:
            self._set()
            yield
        finally:
            now._set()


def _containers(given, used):
    """Pairs of the program's lists and dictionaries, and of those that a computation gets in their place."""
    if given is used or type(given) is not type(used) or not isinstance(given, (list, tuple, dict, collections.deque)):
        return
    if not isinstance(given, tuple):
        yield given, used
    for pair in zip(*((one.values() if isinstance(one, dict) else one) for one in (given, used))):
        yield from _containers(*pair)


def _pass_on(given, used, before) -> None:
    """Does to the program's list or dictionary what a layer did to ``used``, which held ``before``."""
    is_dict = isinstance(given, dict)
    own, was, now = (list(one.items() if is_dict else enumerate(one)) for one in (given, before, used))
    if len(was) == len(now) and all(a[0] == b[0] and a[1] is b[1] for a, b in zip(was, now)):
        return
    theirs = {id(mine): value for (_, mine), (_, value) in zip(was, own)}
    changed = [(key, theirs.get(id(value), value)) for key, value in now]
    given.clear()
    given.update(changed) if is_dict else given.extend(value for _, value in changed)


class _Call:
    """A call of a layer, whose tensors can be replaced."""

    def __init__(self, forward, arguments, settings, at_layer, autocast):
        names = itertools.chain(inspect.signature(forward).parameters, itertools.repeat(None))
        arguments = [_without_cache(name, value) for name, value in zip(names, arguments)]
        settings = {name: _without_cache(name, value) for name, value in settings.items()}
        self._leaves, self._form = tree_flatten((arguments, settings))
        self._places = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]
        self._forward, self.at_layer, self._autocast = forward, at_layer, autocast
        self._given = arguments, settings  # until the first computation

    def tensors(self) -> list:
        """Gives away the tensors, so that the call keeps none of them."""
        found = [self._leaves[i] for i in self._places]
        for i in self._places:
            self._leaves[i] = None
        return found

    def compute(self, tensors) -> list:
        """The output's leaves."""
        leaves = list(self._leaves)
        for i, tensor in zip(self._places, tensors):
            leaves[i] = tensor
        arguments, settings = tree_unflatten(leaves, self._form)
        given, self._given = self._given, None
        pairs = [(*pair, copy.copy(pair[1])) for pair in _containers(given, (arguments, settings))]
        with self._autocast():
            output, self.form = tree_flatten(self._forward(*arguments, **settings))
        for pair in pairs:
            _pass_on(*pair)
        return output


def _refuse(name: str):
    raise RuntimeError(
        f"A tensor that was computed in {name} needs a gradient, and left it other than by the return value of its "
        "forward, as router logits, "
        "values kept by hooks and attributes of modules do; a streamed layer keeps no graph for it: return it, "
        "detach() it, or train without stream=."
    )


class _Entrance(torch.autograd.Function):
    """An input of a first computation, from which no gradient leaves."""

    @staticmethod
    def forward(ctx, name, tensor):
        ctx.name = name
        return tensor.detach()

    @staticmethod
    def backward(ctx, _):
        _refuse(ctx.name)


@contextlib.contextmanager
def _without_memory(name: str):
    """Operations record a graph, which says of every tensor that it needs a gradient, but keep nothing for it. A
    backward that comes there is refused."""
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(lambda _: None, lambda _: _refuse(name)):
        yield


@contextlib.contextmanager
def _without_hooks(params: list):
    """Hooks (register_hook) do not see a part of a gradient, but the sum, when the parameter gets it."""
    hooks = [p._backward_hooks for p in params if p._backward_hooks]
    entries = [dict(one) for one in hooks]
    for one in hooks:
        one.clear()
    try:
        yield
    finally:
        for one, its in zip(hooks, entries):
            one.update(its)


class Uses:
    """A layer's calls, and the gradients of its parameters. A layer may be called several times in a forward, and may
    have parameters that others have, too; as without ``stream``, each parameter gets the sum in one piece."""

    def __init__(self, name: str, own: list, shared: list):
        """``own``: the parameters that only this layer has; ``shared``: the others of the layer that may be trained."""
        self.name, self._own, self._shared = name, own, shared
        self._calls = weakref.WeakSet()  # whose backward has not run
        self._backward, self._held = None, {}  # a backward, and sums so far

    @property
    def own(self) -> list:
        return [p for p in self._own if p.requires_grad]

    @property
    def shared(self) -> list:
        return [p for p in self._shared if p.requires_grad]

    def begin(self, call) -> None:
        self._calls.add(call)

    def end(self, call) -> bool:
        """The call's backward runs. Returns whether its gradients are all that the layer's own parameters get."""
        self._calls.discard(call)
        backward = current_graph_task_id()
        if backward != self._backward:  # another one may have failed
            self._backward, self._held = backward, {}
        return not self._calls and not self._held

    def hold(self, params: list, gradients) -> None:
        for p, gradient in zip(params, gradients):
            if gradient is not None:
                _, have = self._held.get(id(p), (p, None))
                self._held[id(p)] = (p, gradient if have is None else have + gradient)

    def deliver(self, at_layer) -> None:
        """Gives the parameters what is held: when no call waits, or at the end of this backward."""
        if self._calls:
            queue_callback(lambda: self._give(at_layer))
        else:
            self._give(at_layer)

    def _give(self, at_layer) -> None:
        held, self._held = list(self._held.values()), {}
        if held:
            with at_layer(True):
                torch.autograd.backward([p for p, _ in held], [gradient for _, gradient in held])


def _versions(tensors) -> list:
    """Change with what is written in place."""
    return [0 if one.is_inference() else one._version for one in tensors]


class _Recomputed(torch.autograd.Function):
    """Keeps the inputs of the call, or its graph. Its backward computes the call again unless it has that, and its
    gradients at once, so that the layer is in its slot from the first to the last of this work."""

    @staticmethod
    def forward(ctx, call, keep, generators, uses, _anchor, *tensors):
        ctx.call, ctx.random, ctx.uses, ctx.shared = call, generators, uses, uses.shared
        tensors = tensors[: len(tensors) - len(ctx.shared)]
        ctx.set_materialize_grads(False)
        ctx.graph = (
            Graph(call.slot_memory, functools.partial(_refuse, uses.name))
            if call.keeping.wants(call.number, tensors)
            else None
        )
        if ctx.graph is not None:
            with call.at_layer(False), ctx.graph.recorded():
                leaves = ctx.graph.leaves = call.compute(ctx.graph.enter(tensors))
        else:
            kept, ctx.waiting = keep(tensors)
            ctx.save_for_backward(*kept)
            versions = _versions(tensors)
            with call.at_layer(False), _without_memory(uses.name):
                entered = [
                    _Entrance.apply(uses.name, one.detach().requires_grad_()) if one.requires_grad else one
                    for one in tensors
                ]
                leaves = call.compute(entered)
            if _versions(tensors) != versions:
                raise RuntimeError(
                    f"{uses.name} changes an argument in place, and is computed again in backward, which would "
                    "change it once more: let it change a copy (x.clone()), or train without stream=."
                )
        call.output = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        call.is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        found = [leaf.detach() if leaf.requires_grad else leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        ctx.mark_non_differentiable(*(one for one in found if not (one.is_floating_point() or one.is_complex())))
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        if not is_checkpoint_valid():
            raise RuntimeError(inputs.sentence_about(ctx.uses.name))
        call, uses, shared = ctx.call, ctx.uses, ctx.shared
        # A program's checkpoint computes the layer once more when it is asked for the inputs, so that this is no time
        # to be in the slot.
        saved = () if ctx.graph is not None else ctx.waiting(ctx.saved_tensors)
        is_only = uses.end(call)
        with call.at_layer(True), torch.enable_grad(), contextlib.ExitStack() as meanwhile:
            entered, found = _kept(ctx, meanwhile) if ctx.graph is not None else _computed_again(ctx, saved, meanwhile)
            pairs = [
                (one, gradient) for one, gradient in zip(found, gradients) if gradient is not None and one.requires_grad
            ]
            outputs, given = [one for one, _ in pairs], [gradient for _, gradient in pairs]
            if is_only and not shared:
                torch.autograd.backward(outputs, given)
                return *(None,) * _FIRST, *(one.grad for one in entered)
            own, needing = uses.own, [one for one in entered if one.requires_grad]
            with _without_hooks([*own, *shared]):
                found = iter(torch.autograd.grad(outputs, [*own, *shared, *needing], given, allow_unused=True))
            uses.hold(own, [next(found) for _ in own])
            of_shared = [next(found) for _ in shared]
            of_inputs = [next(found) if one.requires_grad else None for one in entered]
        uses.deliver(call.at_layer)
        return *(None,) * _FIRST, *of_inputs, *of_shared


def _kept(ctx, meanwhile) -> tuple:
    """The inputs and outputs of the call, with the graph between them, which ``meanwhile`` has open."""
    inputs, leaves = ctx.graph.taken()
    meanwhile.enter_context(ctx.graph.opened())
    return inputs, [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _computed_again(ctx, saved, meanwhile) -> tuple:
    inputs = [one.detach().requires_grad_(needs) for one, needs in zip(saved, ctx.needs_input_grad[_FIRST:])]
    meanwhile.enter_context(ctx.random.again())
    with ctx.call.keeping.weighed(ctx.call.number, ctx.call.slot_memory(), inputs):
        return inputs, [leaf for leaf in ctx.call.compute(inputs) if isinstance(leaf, torch.Tensor)]


_FIRST = 5  # of forward's arguments, which are no tensors of the call


def run(
    forward, arguments, settings, *, at_layer, keep, keeping, number: int, slot_memory, uses: Uses, device: torch.device
):
    """Calls ``forward``. ``at_layer(is_backward)``: a context in which the layer's parameters are there.
    ``keep(tensors)``: returns what autograd shall save of them, and a function that makes them of it again.
    ``keeping``: see Keeping; ``number``: of the layer; ``slot_memory()``: of the slot that it is in."""
    call = _Call(forward, arguments, settings, at_layer, _Autocast(device.type))
    call.keeping, call.number, call.slot_memory = keeping, number, slot_memory
    tensors = call.tensors()
    shared = uses.shared
    if not uses.own and not shared and not any(one.requires_grad for one in tensors):
        with at_layer(False), _without_memory(uses.name):
            leaves = call.compute(tensors)
        if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            raise RuntimeError(
                f"{uses.name}, which has no parameters to train, reads a tensor that needs a gradient other than by "
                "its arguments: pass it as an argument."
            )
        return tree_unflatten(leaves, call.form)
    uses.begin(call)
    anchor = torch.zeros((), requires_grad=True)  # so that the output needs a gradient although no input may
    found = iter(_Recomputed.apply(call, keep, _Random(device), uses, anchor, *tensors, *shared))
    output = [next(found) if is_tensor else leaf for is_tensor, leaf in zip(call.is_tensor, call.output)]
    return tree_unflatten(output, call.form)
