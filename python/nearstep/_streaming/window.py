"""Holds layers' trained parameters on the host: in the engine's vector, or in storage, from which a window reads them
ahead. Used by streaming.py."""

from __future__ import annotations

import concurrent.futures
import time

import torch

from .._pinned import PinnedMemory
from .._storage import PAGE, aligned, read, whole_pages

_FEWEST_ROOMS = 2  # one is copied to a slot while the next is read


class Vector:
    """All parameters are in host memory."""

    ahead = 1  # layers that are asked for before they compute
    seconds: dict = {}  # of the last step, for Optimizer.stats()

    def __init__(self, conductor):
        self._conductor = conductor

    def describe(self) -> str:
        """A part of a line that says where layers come from."""
        return ""

    def begin(self, layer) -> None:
        """The layer computes soon."""

    def is_here(self, layer) -> bool:
        return all(map(self._conductor.has_block, layer.blocks))

    def take(self, layer) -> list:
        """Waits for the layer's parameters of the last step. Returns where they are; None: copy() knows."""
        for block in layer.blocks:
            self._conductor.await_block(block)
        return layer.homes

    def taken(self, layer, stream) -> None:
        """The layer is copied in the order of ``stream``; None: it was."""

    def end_step(self) -> None:
        """Layers have new values from here on."""

    def close(self) -> None:
        pass


class State(Vector):
    """Parameters are in state that lies in memory, which the device reads. What the program has used itself is in the
    vector until the step ends, and comes from there."""

    def __init__(self, conductor, parameters):
        super().__init__(conductor)
        self._parameters = parameters

    def describe(self) -> str:
        return "are read in the state and "

    def take(self, layer) -> list:
        super().take(layer)
        return [
            home if i is None or self._parameters.stored.is_loaded(i) else None
            for i, home in zip(layer.numbers, layer.homes)
        ]

    def copy(self, i: int, view, stream) -> None:
        """Copies a parameter that take() gave no memory of, in the order of ``stream``; None: at once."""
        begin, end = self._parameters.stored.range_of(i)
        order = None if stream is None else stream.cuda_stream
        self._conductor.copy_parameters(begin, end, view.data_ptr(), view.nbytes, order)


class _Room:
    """Memory for one layer. ``copied`` is over when its last content has left."""

    def __init__(self, memory, device: torch.device):
        self.memory = memory
        self.layer = None
        self.reading: concurrent.futures.Future | None = None
        self.copied = torch.cuda.Event() if device.type == "cuda" else None


def _runs_of(layer, parameters) -> list:
    """Ranges of the vector, in whole pages, that have the layer's parameters."""
    runs: list = []
    for begin, end in sorted(parameters.stored.range_of(i) for i in layer.numbers if i is not None):
        first, last = whole_pages(begin, end)
        if runs and first <= runs[-1][1]:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
        else:
            runs.append((first, last))
    return runs


def room_bytes(layer, parameters) -> int:
    """Memory that a layer takes in a window."""
    return sum(last - first for first, last in _runs_of(layer, parameters)) * parameters.dtype.itemsize


class Window(Vector):
    """Parameters are in storage, and pass through pinned memory. The layer whose use is longest ago makes room. What
    the program has used itself is in the vector until the step ends, and comes from there."""

    def __init__(self, layers: list, room_for: float, conductor, parameters, device: torch.device):
        """``room_for``: bytes."""
        super().__init__(conductor)
        self._parameters = parameters
        self._runs = {layer: _runs_of(layer, parameters) for layer in layers}
        size = max((room_bytes(layer, parameters) for layer in layers), default=0)
        count = max(_FEWEST_ROOMS, min(len(layers), int(room_for // max(size, 1))))
        self._pinned = PinnedMemory(count * size + PAGE, device)
        memory = aligned(self._pinned.memory)
        self._rooms = [_Room(memory[i * size : (i + 1) * size], device) for i in range(count)]  # longest unused first
        self._reader = concurrent.futures.ThreadPoolExecutor(1, "nearstep-window")
        self.ahead = count - 1
        self._seconds = {"read_s": 0.0, "awaited_s": 0.0}
        self.seconds: dict = {}  # of the last step

    def describe(self) -> str:
        return f"are read from storage into {len(self._rooms)} places of host memory and "

    @staticmethod
    def least_bytes(layers: list, parameters) -> int:
        return _FEWEST_ROOMS * max((room_bytes(layer, parameters) for layer in layers), default=0)

    def _room_of(self, layer):
        return next((room for room in self._rooms if room.layer is layer), None)

    def begin(self, layer) -> None:
        """Begins to read the layer if its parameters of the last step are written."""
        if not layer.is_trained or not all(map(self._conductor.has_block, layer.blocks)):
            return
        room = self._room_of(layer) or self._rooms[0]
        self._rooms.remove(room)
        self._rooms.append(room)
        if room.layer is not layer:
            room.layer = layer
            room.reading = self._reader.submit(self._read, room, layer)

    def _read(self, room, layer) -> None:
        if room.copied is not None:
            room.copied.synchronize()
        began = time.perf_counter()
        at = 0
        for first, last in self._runs[layer]:
            size = (last - first) * self._parameters.dtype.itemsize
            read(self._conductor, first, last, room.memory[at : at + size])
            at += size
        self._seconds["read_s"] += time.perf_counter() - began

    def is_here(self, layer) -> bool:
        room = self._room_of(layer)
        return not layer.is_trained or (room is not None and room.reading.done())

    def take(self, layer) -> list:
        if not layer.is_trained:
            return layer.homes
        for block in layer.blocks:
            self._conductor.await_block(block)
        self.begin(layer)
        room = self._room_of(layer)
        began = time.perf_counter()
        try:
            room.reading.result()
        except BaseException:
            room.layer = None
            raise
        self._seconds["awaited_s"] += time.perf_counter() - began
        return [
            home if i is None or self._parameters.stored.is_loaded(i) else self._view(room, layer, i)
            for i, home in zip(layer.numbers, layer.homes)
        ]

    def _view(self, room, layer, i: int):
        """The parameter in the room, where runs lie one behind the other."""
        begin, end = self._parameters.stored.range_of(i)
        itemsize, at = self._parameters.dtype.itemsize, 0
        for first, last in self._runs[layer]:
            if first <= begin < last:
                memory = room.memory[at + (begin - first) * itemsize : at + (end - first) * itemsize]
                return memory.view(self._parameters.dtype).view(self._parameters.values[i].shape)
            at += (last - first) * itemsize
        raise AssertionError("a layer's parameters are in its runs")

    def taken(self, layer, stream) -> None:
        room = self._room_of(layer)
        if room is not None and stream is not None:
            room.copied.record(stream)

    def end_step(self) -> None:
        for room in self._rooms:
            if room.reading is not None:
                concurrent.futures.wait([room.reading])
            room.layer = None
        self.seconds, self._seconds = self._seconds, dict.fromkeys(self._seconds, 0.0)

    def close(self) -> None:
        self._reader.shutdown()
        self._pinned.close()
