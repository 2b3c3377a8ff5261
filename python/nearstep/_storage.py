"""Parameters that stay in storage, read from the state. Used by _model/parameters.py and _streaming/window.py."""

from __future__ import annotations

import os
import tempfile

import torch

from . import _engine

PAGE = 4096  # bytes; memory that storage is read to begins and ends with one


def whole_pages(begin: int, end: int) -> tuple:
    """The elements of the pages that have these."""
    unit = _engine.READ_ELEMS
    return begin // unit * unit, -(-end // unit) * unit


def read(conductor, begin: int, end: int, memory) -> None:
    """Reads elements of the vector from storage. ``memory``: of the pages that have them, page by page."""
    first, last = whole_pages(begin, end)
    conductor.read_parameters(first, last, memory.data_ptr(), memory.numel() * memory.element_size())


def pages_of(begin: int, end: int, dtype: torch.dtype):
    """Memory for read(), and where the elements lie in it."""
    first, last = whole_pages(begin, end)
    memory = aligned(torch.empty((last - first) * dtype.itemsize + PAGE, dtype=torch.uint8))[
        : (last - first) * dtype.itemsize
    ].view(dtype)
    return memory, memory[begin - first : end - first]


def aligned(memory):
    """The bytes from the first page on."""
    return memory[-memory.data_ptr() % PAGE :]


def folder_for(path: str) -> str:
    """The folder ``path`` or, while that is not made yet, the nearest one above: files without a name lie there
    meanwhile.
    """
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def memory_of_file(folder: str, size: int):
    """Bytes of a file without a name, which the kernel writes there where memory is short. Raises OSError if the folder
    has no room for all of them: without it the process would end when a page is written."""
    with tempfile.TemporaryFile(dir=folder_for(folder)) as file:
        os.posix_fallocate(file.fileno(), 0, size)
        return torch.from_file(f"/proc/self/fd/{file.fileno()}", shared=True, size=size, dtype=torch.uint8)
