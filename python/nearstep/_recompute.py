"""Computes a layer twice: without a graph in forward, and with one in backward."""

from __future__ import annotations

import contextlib
import inspect
import itertools

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

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
        self._settings = {"device_type": device_type, "dtype": torch.get_autocast_dtype(device_type),
                          "enabled": torch.is_autocast_enabled(device_type), "cache_enabled": False}

    def __call__(self):
        return torch.autocast(**self._settings) if self._settings["enabled"] else contextlib.nullcontext()


class _Random:
    """The random generators as they are now."""

    def __init__(self, device: torch.device):
        self._devices = [device] if device.type == "cuda" else []
        self._states = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._devices)]

    @contextlib.contextmanager
    def again(self):
        with torch.random.fork_rng(self._devices):
            torch.set_rng_state(self._states[0])
            for device, state in zip(self._devices, self._states[1:]):
                torch.cuda.set_rng_state(state, device)
            yield


class _Call:
    """A call of a layer, whose tensors can be replaced."""

    def __init__(self, forward, arguments, settings, at_layer, autocast):
        names = itertools.chain(inspect.signature(forward).parameters, itertools.repeat(None))
        arguments = [_without_cache(name, value) for name, value in zip(names, arguments)]
        settings = {name: _without_cache(name, value) for name, value in settings.items()}
        self._leaves, self._form = tree_flatten((arguments, settings))
        self._places = [i for i, leaf in enumerate(self._leaves) if isinstance(leaf, torch.Tensor)]
        self._forward, self._at_layer, self._autocast = forward, at_layer, autocast

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
        with self._autocast():
            output, self.form = tree_flatten(self._forward(*arguments, **settings))
        return output


class _Recomputed(torch.autograd.Function):
    """Keeps the inputs of the call. Its backward computes the call again and its gradients at once, so that the layer is
    in its slot from the first to the last of this work."""

    @staticmethod
    def forward(ctx, call, keep, random, _anchor, *tensors):
        ctx.call, ctx.random = call, random
        ctx.set_materialize_grads(False)
        kept, ctx.waiting = keep(tensors)
        ctx.save_for_backward(*kept)
        with call._at_layer(False):
            leaves = call.compute(tensors)
        call.output = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        call.is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        ctx.mark_non_differentiable(*(one for one in found if not (one.is_floating_point() or one.is_complex())))
        return tuple(found)

    @staticmethod
    def backward(ctx, *gradients):
        inputs = ctx.waiting(ctx.saved_tensors)
        inputs = [one.detach().requires_grad_(needs) for one, needs in zip(inputs, ctx.needs_input_grad[4:])]
        with ctx.call._at_layer(True), torch.enable_grad(), ctx.random.again():
            found = [leaf for leaf in ctx.call.compute(inputs) if isinstance(leaf, torch.Tensor)]
            pairs = [(one, gradient) for one, gradient in zip(found, gradients) if gradient is not None and one.requires_grad]
            torch.autograd.backward([one for one, _ in pairs], [gradient for _, gradient in pairs])
        return None, None, None, None, *(one.grad for one in inputs)


def run(forward, arguments, settings, *, at_layer, keep, is_trained: bool, device: torch.device):
    """Calls ``forward``. ``at_layer(is_backward)``: a context in which the layer's parameters
    are there. ``keep(tensors)``: returns
    what autograd shall save of them, and a function that makes them of it again."""
    call = _Call(forward, arguments, settings, at_layer, _Autocast(device.type))
    tensors = call.tensors()
    if not is_trained and not any(one.requires_grad for one in tensors):
        with at_layer(False), torch.no_grad():
            return tree_unflatten(call.compute(tensors), call.form)
    anchor = torch.zeros((), requires_grad=True)  # so that the output needs a gradient although no input may
    found = iter(_Recomputed.apply(call, keep, _Random(device), anchor, *tensors))
    output = [next(found) if is_tensor else leaf for is_tensor, leaf in zip(call.is_tensor, call.output)]
    return tree_unflatten(output, call.form)
