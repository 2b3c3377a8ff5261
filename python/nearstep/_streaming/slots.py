"""Passes layers' parameters through a few slots on the device. Used by streaming.py."""

from __future__ import annotations

import collections
import dataclasses

import torch

from .._torch_private import DisableTorchFunctionSubclass, peek_interpreter_stack
from .._model.outside import outside_inference
from .._model.composed import tensors_of
from .._model.groups import layers_of
from .._pinned import PinnedMemory, padded, views

# Layers whose work the device may have before it. Programs call layers long before the device computes them, and what
# copies in streams of their own have read (inputs, gradients) is free only when these are over: without a limit that
# grows with the model.
_AHEAD = 3


@dataclasses.dataclass(eq=False)
class Layer:
    """A module whose parameters are in host memory, and in a slot while it computes."""

    module: torch.nn.Module
    params: list  # in place of one that consists of others, these
    numbers: list  # of the parameters among the trained ones; None: frozen
    blocks: list  # of the engine's vector that hold the trained ones
    homes: list = dataclasses.field(default_factory=list)  # host tensors of the parameters
    outside: list = dataclasses.field(
        default_factory=list
    )  # what the parameters have while the layer is in no slot: homes, or memory of the program's
    slot: _Slot | None = None
    is_current: bool = False  # whether the slot has the newest values

    @property
    def is_trained(self) -> bool:
        return bool(self.blocks)

    def check_module(self) -> None:
        """Raises RuntimeError where autograd would not see what the layer computes with."""
        if peek_interpreter_stack() is not None:
            raise RuntimeError(
                "torch.func's transforms do not see into a streamed layer: train without stream=, or compute without "
                "gradients."
            )
        missing = set(map(id, self.params)) - {id(one) for p in self.module.parameters() for one in tensors_of(p)}
        if missing:
            raise RuntimeError(
                f"A streamed layer ({type(self.module).__name__}) has other tensors in place of {len(missing)} "
                "parameters, as by functional_call() or after "
                "parametrize: it computes with its own only; train without stream=, or make a new optimizer."
            )

    @property
    def slot_bytes(self) -> int:
        return _bytes_of(self.params)


def layers_with_params(module) -> list:
    """Pairs of a layer and its parameters that nothing else has."""
    layers = list(layers_of(module))
    inside = {id(inner) for layer in layers for inner in layer.modules()}
    owners: dict = {}
    for layer in layers:
        for p in set(layer.parameters()):
            owners.setdefault(id(p), []).append(layer)
    outside = {id(p) for owner in module.modules() if id(owner) not in inside for p in owner.parameters(recurse=False)}
    pairs = [
        (layer, [p for p in layer.parameters() if len(owners[id(p)]) == 1 and id(p) not in outside]) for layer in layers
    ]
    return [(layer, params) for layer, params in pairs if params]


def _bytes_of(params) -> int:
    return sum(padded(p.numel() * p.element_size()) for p in params)


class HostMemory:
    """Frozen parameters in host memory, which a GPU can read while the host works on."""

    def __init__(self, params: list):
        self._params = {id(p): p for p in params}
        self._homes: dict = {}
        self._pinned: PinnedMemory | None = None

    def reserve(self, device: torch.device) -> None:
        self._pinned = PinnedMemory(_bytes_of(self._params.values()), device)
        self._homes = dict(zip(self._params, views(self._pinned.memory, self._params.values())))

    def of(self, p):
        """The parameter's memory; None for others."""
        return self._homes.get(id(p))

    @torch.no_grad()
    def take(self) -> None:
        """Moves the parameters there."""
        for key, p in self._params.items():
            if p.data_ptr() != self._homes[key].data_ptr():
                self._homes[key].copy_(p)
                p.data = self._homes[key]

    def close(self) -> None:
        if self._pinned is not None:
            self._pinned.close()


class _Slot:
    """``used`` is over when the last work that read the slot is; ``loaded`` when the copy into it is."""

    def __init__(self, size: int, device: torch.device):
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.layer: Layer | None = None
        self.has_stream = device.type == "cuda"
        if self.has_stream:
            self.used, self.loaded = torch.cuda.Event(), torch.cuda.Event()
            self.used.record(torch.cuda.current_stream(device))


class Slots:
    """Layers take turns in the slots: the one whose use is longest ago makes room. Without a GPU the slots are in host
    memory, and the same happens."""

    def __init__(self, layers: list[Layer], count: int, device: torch.device, source, watch):
        """``source``: a Vector, a Window or a State; ``watch(layer)``: called when a layer's parameters are in a slot,
        where the program's writes would be lost.
        """
        self._layers = layers
        self._device = device
        self._source, self._watch = source, watch
        self._size = max(layer.slot_bytes for layer in layers)
        self._slots: list[_Slot] = []  # longest unused first
        self._in_use: Layer | None = None
        self._computing: collections.deque = collections.deque()  # events after layers' work
        self._copies = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.grow(count)

    def grow(self, count: int) -> None:
        """Has at least so many slots."""
        while len(self._slots) < count:
            self._slots.insert(0, _Slot(self._size, self._device))

    def load_from(self, source) -> None:
        """Layers come from there from here on. Between steps."""
        self._source = source

    def __len__(self) -> int:
        return len(self._slots)

    @outside_inference()
    @torch.no_grad()
    def enter(self, layer: Layer) -> None:
        """Puts the layer's parameters into a slot, for work that the device receives from now on, until leave()."""
        self._load(layer)
        self._in_use = layer
        self._slots.remove(layer.slot)
        self._slots.append(layer.slot)
        if layer.slot.has_stream:
            torch.cuda.current_stream(self._device).wait_event(layer.slot.loaded)

    def leave(self, layer: Layer) -> None:
        """The layer's slot may be used anew when the device is done with the work so far."""
        if layer.slot.has_stream:
            layer.slot.used = torch.cuda.current_stream(self._device).record_event()
            self._computing.append(layer.slot.used)
            if len(self._computing) > _AHEAD:
                self._computing.popleft().synchronize()
        self._in_use = None

    def expect(self, layer: Layer) -> None:
        """The layer computes soon."""
        if not self._has(layer):
            self._source.begin(layer)

    @outside_inference()
    @torch.no_grad()
    def prefetch(self, layer: Layer) -> None:
        """Begins to load the layer, unless its parameters are not there yet."""
        if layer is not self._in_use and self._source.is_here(layer):
            self._load(layer)

    @staticmethod
    def _has(layer: Layer) -> bool:
        return layer.slot is not None and layer.is_current

    def _load(self, layer: Layer) -> None:
        if self._has(layer):
            return
        homes = self._newest(layer, self._source.take(layer))
        slot = layer.slot or next(one for one in self._slots if one.layer is None or one.layer is not self._in_use)
        if slot.layer is not None and slot.layer is not layer:
            self._evict(slot.layer)
        slot.layer, layer.slot, layer.is_current = layer, slot, True
        if slot.has_stream:
            self._copies.wait_event(slot.used)
            if any(home is not None and home.is_cuda for home in homes):  # the program's
                self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies), DisableTorchFunctionSubclass():
            for p, number, home, view in zip(layer.params, layer.numbers, homes, views(slot.memory, layer.params)):
                if home is None:
                    self._source.copy(number, view, self._copies)
                else:
                    view.copy_(home, non_blocking=True)
                p.data = view
        if slot.has_stream:
            slot.loaded.record(self._copies)
        self._source.taken(layer, self._copies)
        self._watch(layer)

    @staticmethod
    def _newest(layer: Layer, homes: list) -> list:
        """Returns where to load from: memory that the program gave a parameter, else ``homes``."""
        with DisableTorchFunctionSubclass():
            for i, (p, outside) in enumerate(zip(layer.params, layer.outside) if layer.slot is None else ()):
                if p.data_ptr() != outside.data_ptr():
                    if p.shape != outside.shape:
                        raise RuntimeError(
                            f"A streamed parameter has the shape {tuple(p.shape)}, and had {tuple(outside.shape)} "
                            "when training began: make a new optimizer."
                        )
                    layer.outside[i] = p.data
        return [home if mine is own else mine for home, mine, own in zip(homes, layer.outside, layer.homes)]

    def _evict(self, layer: Layer) -> None:
        self._take_home(layer)
        layer.slot.layer, layer.slot = None, None

    def end_step(self) -> None:
        """Trained layers have new values from here on."""
        for layer in self._layers:
            if layer.is_trained:
                layer.is_current = False
                layer.outside = [
                    outside if number is None else home
                    for outside, home, number in zip(layer.outside, layer.homes, layer.numbers)
                ]
                if layer.slot is None:
                    self._take_home(layer)
        self._source.end_step()

    @staticmethod
    def _take_home(layer: Layer) -> None:
        with DisableTorchFunctionSubclass():
            for p, outside in zip(layer.params, layer.outside):
                if p.data_ptr() != outside.data_ptr():
                    p.data = outside

    @outside_inference()
    def empty(self) -> None:
        """All parameters are in host memory afterwards, but for a layer that computes now."""
        for layer in self._layers:
            if layer.slot is not None and layer is not self._in_use:
                self._evict(layer)
