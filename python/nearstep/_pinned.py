"""Makes host memory that a GPU reads and writes while the host works on. Used for sums, slots and parameters."""

from __future__ import annotations

import weakref

import torch

from . import _engine

ALIGNMENT = 512  # bytes, of each tensor


def padded(count: int) -> int:
    """Bytes that a tensor of so many takes."""
    return -(-count // ALIGNMENT) * ALIGNMENT


def views(memory, like):
    """Tensors of the shapes and formats of ``like``, one behind the other in ``memory``."""
    at = 0
    for one in like:
        size = one.numel() * one.element_size()
        yield memory[at : at + size].view(one.dtype).view(one.shape)
        at += padded(size)


def resident_bytes() -> int:
    """Memory of this process that no file has."""
    with open("/proc/self/status") as status:
        sizes = dict(line.split(":", 1) for line in status)
    return sum(int(sizes[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))


class PinnedMemory:
    """The engine's, on huge pages, which take a fraction of the time to clear and to pin. Registered with CUDA, so that
    it has the size that was asked for: PyTorch's own pinned memory has the next power of two. Where a system refuses to
    pin it, copies are slower but correct."""

    def __init__(self, size: int, device: torch.device):
        self.memory = _engine.host_memory(size)
        self._unpin = None
        if device.type != "cuda" or not size:
            return
        with torch.cuda.device(device):  # threads of a pool begin with the first one
            is_pinned = int(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), size, 0)) == 0
        if is_pinned:
            self._unpin = weakref.finalize(self, _unpin, self.memory)
            self._unpin.atexit = False  # the end of the process frees it

    def close(self) -> None:
        if self._unpin is not None:
            self._unpin()


def _unpin(memory) -> None:
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
