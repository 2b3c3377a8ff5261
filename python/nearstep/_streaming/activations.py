"""Keeps layers' inputs between forward and backward: on the GPU, in pinned host memory, or on drives. Used by
streaming.py."""

from __future__ import annotations

import weakref

import torch

from .spill import rooms_bytes


class _OnHost:
    """A tensor that waits in host memory: one of the GPU is copied there."""

    def __init__(self, tensor, streams):
        self._streams = streams
        self._device = tensor.device
        self._on_gpu, self._host = None, tensor
        if streams is None:
            return
        self._host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        out, _ = streams
        out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(out):
            self._host.copy_(tensor, non_blocking=True)
        tensor.record_stream(out)
        self._is_out = out.record_event()

    @property
    def is_taken(self) -> bool:
        return self._host is None and self._on_gpu is None

    def fetch(self) -> None:
        """Begins to bring it back."""
        if self._on_gpu is not None or self._streams is None:
            return
        _, back = self._streams
        back.wait_event(self._is_out)
        with torch.cuda.stream(back):
            self._on_gpu = self._host.to(self._device, non_blocking=True)
        self._is_back = back.record_event()
        self._host = None  # a program may keep the graph until its next backward

    def take(self):
        self.fetch()
        if self._streams is None:
            tensor, self._host = self._host, None
            return tensor
        now = torch.cuda.current_stream(self._device)
        now.wait_event(self._is_back)
        self._on_gpu.record_stream(now)
        tensor, self._on_gpu = self._on_gpu, None
        return tensor


class _OnDrive:
    """A tensor that waits in a file."""

    def __init__(self, tensor, spill):
        self._spill, self._place, self._reading = spill, spill.put(tensor), None
        self._drop = weakref.finalize(self, spill.drop, self._place, None)
        self._drop.atexit = False

    @property
    def is_taken(self) -> bool:
        return self._place is None

    def fetch(self) -> None:
        if self._reading is None:
            self._reading = self._spill.fetch(self._place)
            self._drop.detach()
            self._drop = weakref.finalize(self, self._spill.drop, self._place, self._reading)
            self._drop.atexit = False

    def take(self):
        self.fetch()
        tensor = self._spill.take(self._place, self._reading)
        self._drop.detach()
        self._spill.drop(self._place, None)
        self._place = None
        return tensor


def _pinned_bytes(size: int) -> int:
    """Returns the bytes that PyTorch's pinned memory takes for ``size`` bytes: it rounds up to a power of two."""
    return 1 << max(0, size - 1).bit_length()


class Activations:
    """Keeps the inputs of layers for backward. ``on_host``: those that need a gradient, which are the ones that differ
    from layer to layer, wait in host memory, up to ``room`` bytes, and then in ``spill``, or where they are if there is
    none; the last ones come back first, one layer ahead."""

    def __init__(self, device: torch.device, on_host: bool, room: float = float("inf"), spill=None):
        self.on_host = on_host and (device.type == "cuda" or spill is not None)
        self.most_bytes = 0  # that waited at once
        self._bytes = 0
        self._room, self._spill = room, spill
        self._streams = (torch.cuda.Stream(device), torch.cuda.Stream(device)) if device.type == "cuda" else None
        self._stack: list = []  # weak references to what waits, in the order of forward

    def keep(self, tensors):
        """Returns the tensors for autograd to save, and a function that makes all tensors of these again."""
        out = {i: self._put(one) for i, one in enumerate(tensors) if one.requires_grad and self._has_place_for(one)}
        count = len(tensors)

        def again(saved):
            rest = iter(saved)
            return [self._take(out[i]) if i in out else next(rest) for i in range(count)]

        return [one for i, one in enumerate(tensors) if i not in out], again

    def _is_full(self, size: int) -> bool:
        """Whether host memory has no room for so many bytes, and for moving others to files."""
        return _pinned_bytes(size) + (0 if self._spill is None else rooms_bytes(size)) > self._room

    def _has_place_for(self, tensor) -> bool:
        """Whether the tensor waits elsewhere than where it is."""
        return self.on_host and (self._spill is not None or not self._is_full(tensor.nbytes))

    def _put(self, tensor):
        size = tensor.nbytes
        taken = _pinned_bytes(size)
        is_full = self._is_full(size)
        waiting = _OnDrive(tensor.detach(), self._spill) if is_full else _OnHost(tensor.detach(), self._streams)
        taken = 0 if is_full else taken
        self._room -= taken
        self._bytes += size
        self.most_bytes = max(self.most_bytes, self._bytes)
        waiting.forget = weakref.finalize(waiting, self._forget, size, taken)
        self._newest()
        self._stack.append(weakref.ref(waiting))
        return waiting

    def _forget(self, size: int, taken: int) -> None:
        self._bytes -= size
        self._room += taken

    def _take(self, waiting):
        if waiting.is_taken:
            raise RuntimeError(
                "Backward runs twice through a streamed layer whose inputs waited in host memory: pass "
                'Stream(activations="gpu").'
            )
        tensor = waiting.take()
        waiting.forget()
        following = self._newest()
        if following is not None:
            following.fetch()
        return tensor

    def _newest(self):
        """The last one that waits still; None if there is none."""
        while self._stack:
            waiting = self._stack[-1]()
            if waiting is not None and waiting.forget.alive:
                return waiting
            self._stack.pop()
        return None
