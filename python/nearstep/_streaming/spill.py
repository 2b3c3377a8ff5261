"""Files without names beside the state, in which tensors wait that host memory has no room for. Used by
activations.py.
"""

from __future__ import annotations

import concurrent.futures
import ctypes
import dataclasses
import errno
import itertools
import os
import queue
import tempfile

import torch

from .._pinned import PinnedMemory
from .._storage import PAGE, aligned, folder_for

_ROOMS = 3  # tensors that are on their way at once: one that computes, one ahead of it, one that is written
_AT_ONCE = 64 << 20  # bytes


def _open(folder: str) -> int:
    """A file that ends with this process, past the page cache where the file system can do that."""
    descriptor, name = tempfile.mkstemp(prefix="nearstep-inputs-", dir=folder_for(folder))
    try:
        direct = os.open(name, os.O_RDWR | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return descriptor
    finally:
        os.unlink(name)
    os.close(descriptor)
    return direct


@dataclasses.dataclass
class _Place:
    """Where a tensor lies."""

    file: int
    offset: int
    size: int
    shape: torch.Size
    dtype: torch.dtype
    written: concurrent.futures.Future | None = None


class _Room:
    """Host memory for a tensor on its way. ``used`` is over when the GPU has read it."""

    def __init__(self, device: torch.device):
        self._device = device
        self._pinned = PinnedMemory(0, device)
        self.used = None

    def memory(self, size: int):
        if self._pinned.memory.numel() < size + PAGE:
            self._pinned.close()
            self._pinned = PinnedMemory(size + PAGE, self._device)
        return aligned(self._pinned.memory)[:size]

    def tensor(self, place: _Place):
        count = place.shape.numel() * place.dtype.itemsize
        return self.memory(place.size)[:count].view(place.dtype).view(place.shape)

    def close(self) -> None:
        self._pinned.close()


def _move(move, file: int, memory, offset: int) -> None:
    """``move``: os.preadv or os.pwritev. Raises OSError."""
    bytes_of = (ctypes.c_char * memory.numel()).from_address(memory.data_ptr())
    at = 0
    while at < len(bytes_of):
        moved = move(file, [memoryview(bytes_of)[at : at + _AT_ONCE]], offset + at)
        if moved == 0:
            raise OSError(errno.EIO, "the file ends too early")
        at += moved


def rooms_bytes(size: int) -> int:
    """Memory through which tensors of so many bytes pass."""
    return _ROOMS * (size + 2 * PAGE)


class Spill:
    """Moves activations to files and back. One thread of the program puts and takes; a few threads move the bytes."""

    def __init__(self, folders: list, device: torch.device):
        self._device = device
        self._files = [_open(folder) for folder in folders]
        self._next = itertools.cycle(range(len(folders)))
        self._ends = [0] * len(folders)
        self._free: dict = {}  # places by size
        self._rooms: queue.SimpleQueue = queue.SimpleQueue()
        for _ in range(_ROOMS):
            self._rooms.put(_Room(device))
        self._movers = concurrent.futures.ThreadPoolExecutor(_ROOMS, "nearstep-inputs")
        self._out, self._back = (
            (torch.cuda.Stream(device), torch.cuda.Stream(device)) if device.type == "cuda" else (None, None)
        )

    def _room(self) -> _Room:
        room = self._rooms.get()
        if room.used is not None:
            room.used.synchronize()
            room.used = None
        return room

    def _place(self, tensor) -> _Place:
        size = -(-tensor.numel() * tensor.element_size() // PAGE) * PAGE
        free = self._free.get(size)
        if free:
            file, offset = free.pop()
        else:
            file = next(self._next)
            offset = self._ends[file]
            self._ends[file] += size
        return _Place(file, offset, size, tensor.shape, tensor.dtype)

    def put(self, tensor) -> _Place:
        """Begins to write it."""
        place, room = self._place(tensor), self._room()
        home, copied = room.tensor(place), None
        if self._out is None:
            home.copy_(tensor)
        else:
            self._out.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._out):
                home.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._out)
            copied = self._out.record_event()
        place.written = self._movers.submit(self._write, place, room, copied)
        return place

    def _write(self, place: _Place, room: _Room, copied) -> None:
        try:
            if copied is not None:
                copied.synchronize()
            _move(os.pwritev, self._files[place.file], room.memory(place.size), place.offset)
        finally:
            self._rooms.put(room)

    def fetch(self, place: _Place) -> concurrent.futures.Future:
        """Begins to read it, for take() or drop()."""
        room = self._room()
        return self._movers.submit(self._read, place, room)

    def _read(self, place: _Place, room: _Room) -> _Room:
        try:
            place.written.result()
            _move(os.preadv, self._files[place.file], room.memory(place.size), place.offset)
        except BaseException:
            self._rooms.put(room)
            raise
        return room

    def take(self, place: _Place, reading: concurrent.futures.Future):
        """The tensor, on its device, for work that this receives from now on."""
        try:
            room = reading.result()
        except OSError as error:
            raise RuntimeError(
                "Inputs of layers that waited in the state's folders could not be moved there or back "
                f"({error.strerror}): free space there, "
                "or give a larger host_memory_gb or fewer tokens at a time."
            ) from error
        tensor = torch.empty(place.shape, dtype=place.dtype, device=self._device)
        if self._back is None:
            tensor.copy_(room.tensor(place))
        else:
            now = torch.cuda.current_stream(self._device)
            self._back.wait_stream(now)  # the memory of the new tensor may be in use there
            with torch.cuda.stream(self._back):
                tensor.copy_(room.tensor(place), non_blocking=True)
            tensor.record_stream(self._back)
            room.used = self._back.record_event()
            now.wait_event(room.used)
        self._rooms.put(room)
        return tensor

    def drop(self, place: _Place, reading: concurrent.futures.Future | None) -> None:
        """Nobody takes the tensor; take() was called, or never will be."""
        if reading is not None:
            reading.add_done_callback(lambda done: None if done.exception() else self._rooms.put(done.result()))
        place.written.add_done_callback(
            lambda _: self._free.setdefault(place.size, []).append((place.file, place.offset))
        )

    def close(self) -> None:
        self._movers.shutdown()
        while not self._rooms.empty():
            self._rooms.get().close()
        for file in self._files:
            os.close(file)
