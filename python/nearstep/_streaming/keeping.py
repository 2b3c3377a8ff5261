"""Layers that keep what their backward needs, as far as the GPU's memory suffices, so that they compute once. The
others compute again. Used by streaming.py and recompute.py."""

from __future__ import annotations

import contextlib
import math

import torch

from .._torch_private import storage_uses


def _bytes_of(tensors) -> int:
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())


def _is_in(memory, tensor) -> bool:
    return tensor.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()


def _place_of(tensor) -> tuple:
    return tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()


def _at_place(memory, dtype, *place):
    return torch.empty(0, dtype=dtype, device=memory.device).set_(memory.untyped_storage(), *place)


class Graph:
    """The tensors that autograd saves of one call of a layer. For the layer's parameters it saves their places in the
    slot, which holds them again in backward. ``refuse``: called where the graph is used while it is closed."""

    def __init__(self, memory, refuse):
        """``memory()`` returns the memory of the slot that the layer is in."""
        self._memory, self._refuse = memory, refuse
        self._is_open = False
        self._inputs: list | None = None  # leaves, and tensors that need no gradient
        self.leaves: list = []  # of the output

    def _pack(self, tensor):
        return _place_of(tensor) if _is_in(self._memory(), tensor) else tensor

    def _unpack(self, packed):
        self.check()
        return packed if isinstance(packed, torch.Tensor) else _at_place(self._memory(), *packed)

    @contextlib.contextmanager
    def recorded(self):
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

    def enter(self, tensors: list) -> list:
        """The inputs of the computation, from which gradients leave while this is open."""
        self._inputs = [one.detach().requires_grad_(one.requires_grad) for one in tensors]
        return [_Gate.apply(self, one) if one.requires_grad else one for one in self._inputs]

    def taken(self) -> tuple:
        """The inputs, and the output's leaves, which this has no longer."""
        if self._inputs is None:
            raise RuntimeError(
                "Backward runs twice through a streamed layer that kept its activations: pass "
                'Stream(activations="gpu").'
            )
        found, self._inputs, self.leaves = (self._inputs, self.leaves), None, []
        return found

    @contextlib.contextmanager
    def opened(self):
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def check(self) -> None:
        if not self._is_open:
            self._refuse()


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, graph, tensor):
        ctx.graph = graph
        return tensor.detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.graph.check()
        return None, gradient


class Keeping:
    """``measure``: returns a Memory (see room.py) of the GPU; None: no layer keeps anything. The first step
    measures.
    """

    def __init__(self, measure, capacity):
        """``capacity(memory)``: bytes that the process may take."""
        self._measure, self._capacity = measure, capacity
        self._shares: dict = {}  # bytes that a layer would keep, for each byte of its inputs; by its number
        self._sizes: dict = {}  # in the first step
        self._first: int | None = None  # allocated before the first layer
        self._needed: float | None = None  # on top of that for a step in which no layer keeps anything; None: not known
        self._before: set = set()  # numbers of the layers that kept their graphs in the step before
        self._did: set = set()  # in this step
        self._could_not: set = set()

    def wants(self, number: int, tensors: list) -> bool:
        """Whether the call of a layer shall keep its graph."""
        if self._measure is None:
            return False
        now = self._measure()
        if self._first is None:
            self._first = now.allocated
        if self._needed is None or number not in self._shares:
            return False
        size = self._shares[number] * _bytes_of(tensors)
        fits = now.allocated + size + self._needed <= self._capacity(now)
        (self._did if fits else self._could_not).add(number)
        return fits

    @contextlib.contextmanager
    def weighed(self, number: int, memory, inputs: list):
        """Around a second computation, whose graph would be kept. ``memory``: of the layer's slot. A graph that holds a
        part of the slot other than by what autograd saves, as bitsandbytes' 4-bit products do, would compute its
        backward with what is in that slot then: such a layer always computes again."""
        if self._measure is None or number in self._shares:
            yield
            return
        saved = list(inputs)

        def see(tensor):
            if _is_in(memory, tensor):
                return _place_of(tensor)
            saved.append(tensor.detach())
            return tensor

        def give(packed):
            return packed if isinstance(packed, torch.Tensor) else _at_place(memory, *packed)

        before = storage_uses(memory)
        with torch.autograd.graph.saved_tensors_hooks(see, give):
            yield
        if storage_uses(memory) > before:
            self._shares[number] = math.inf
            return
        self._sizes[number] = _bytes_of(saved)
        self._shares[number] = self._sizes[number] / max(1, _bytes_of(inputs))

    def decide(self, taken: float, left: float) -> tuple:
        """``taken``: bytes that the first step took, and what will be on the GPU besides; ``left``: those that are free
        then. Returns how many layers will keep their graphs, and the bytes of them."""
        self._needed = taken - (self._first or 0)
        count, size = 0, 0.0
        for number in sorted(self._sizes):
            if size + self._sizes[number] > left:
                break
            count, size = count + 1, size + self._sizes[number]
        return count, size

    def leave(self, size: float) -> None:
        """From here on so many bytes more are for others."""
        if self._needed is not None:
            self._needed += size

    @property
    def mean_bytes(self) -> float:
        return sum(self._sizes.values()) / max(1, len(self._sizes))

    def end_step(self) -> int:
        """Returns how many layers had no room any more."""
        fewer = len(self._before & self._could_not)
        self._before, self._did, self._could_not = self._did - self._could_not, set(), set()
        return fewer
