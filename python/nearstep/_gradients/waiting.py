"""Holds gradients that wait in host memory, and runs the threads that add them to sums there. Used by sums.py and
host_sums.py."""

from __future__ import annotations

import bisect
import collections
import concurrent.futures
import threading

from .. import _engine
from .._model.groups import DTYPES
from .._pinned import padded

_CORES_OF_OTHERS = 2  # the program's thread, and the engine's that calls MPI
_SHARE_OF_FREE = 4  # at most one part in so many of the host's free memory is for gradients that wait


def bytes_of_waiting(params, share: float = 1) -> int:
    """Host memory for gradients of these parameters that wait: this share of those of a pass, in the parameters'
    format. The largest one fits, unless the share is 0."""
    sizes = [padded(p.numel() * p.element_size()) for p in params]
    return max(int(share * sum(sizes)), max(sizes, default=0)) if share else 0


def bounded_by_free(wanted: int, taken: int) -> int:
    """``taken``: bytes that the process is about to take beside them."""
    return min(wanted, max(0, _engine.free_host_memory() - taken) // _SHARE_OF_FREE)


class WaitingRoom:
    """Divides ``memory``, a tensor of bytes, among gradients. Any thread may call."""

    def __init__(self, memory):
        self._memory = memory
        self._free = [(0, memory.numel())]  # pairs of a begin and a size, ascending, with gaps between them
        self._leaving: collections.deque = (
            collections.deque()
        )  # pairs of an event and a tensor that the GPU may still read
        self._lock = threading.Lock()

    def take(self, like):
        """A tensor of that shape and format; None if there is no room."""
        size = padded(like.nbytes)
        with self._lock:
            while self._leaving and self._leaving[0][0].query():
                self._join(self._leaving.popleft()[1])
            found = next((k for k, (_, room) in enumerate(self._free) if room >= size), None)
            if found is None:
                return None
            begin, room = self._free.pop(found)
            if room > size:
                self._free.insert(found, (begin + size, room - size))
        return self._memory[begin : begin + like.nbytes].view(like.dtype).view(like.shape)

    def give_back(self, tensors: list, read=None) -> None:
        """``read``: an event after which the GPU has read them."""
        with self._lock:
            for one in tensors:
                if read is None:
                    self._join(one)
                else:
                    self._leaving.append((read, one))

    def _join(self, one) -> None:
        begin, size = one.storage_offset() * one.element_size(), padded(one.nbytes)
        if not size:
            return
        at = bisect.bisect(self._free, (begin,))
        if at < len(self._free) and begin + size == self._free[at][0]:
            size += self._free.pop(at)[1]
        if at and sum(self._free[at - 1]) == begin:
            at -= 1
            begin, size = self._free[at][0], size + self._free.pop(at)[1]
        self._free.insert(at, (begin, size))


class Adders:
    """Threads of the host that add what waits for a place, a HostSum, to its sum: one thread for one place at a time.
    Only the thread that puts gradients to a place may call its functions."""

    def __init__(self):
        count = max(1, _engine.pool_threads() - _CORES_OF_OTHERS)
        self._pool = concurrent.futures.ThreadPoolExecutor(count, thread_name_prefix="nearstep-adds")
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def add(self, place, gradient, room: WaitingRoom, now: bool = True) -> None:
        """``gradient``: in the room, when ``place.used`` is over. ``now``: not only with the next one."""
        with self._lock:
            place.waiting.append(gradient)
            if now and place.job is None:
                place.job = self._pool.submit(self._work, place, room)

    def claim(self, place) -> None:
        """No thread adds to the place from here on. Raises what a thread has raised."""
        with self._lock:
            job = place.job
            if job is not None and job.cancel():
                place.job = job = None
        if job is not None:
            job.result()
        self.check()

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self, place, room: WaitingRoom) -> None:
        try:
            while gradients := self._next(place):
                add_on_host(place, gradients)
                room.give_back(gradients)
        except BaseException as error:
            with self._lock:
                self._error, place.job = error, None

    def _next(self, place) -> list:
        """All that waits for the place, when it is there. Empty: the job is over."""
        with self._lock:
            gradients, place.waiting = place.waiting, []
            used = place.used
            if not gradients:
                place.job = None
        if gradients and used is not None:
            used.synchronize()
        return gradients

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def add_on_host(place, gradients: list) -> None:
    """In one pass over the memory, so that threads that are late have less to do."""
    pieces = [(one.data_ptr(), DTYPES[one.dtype]) for one in (place.value, *gradients)]
    _engine.add_on_host(place.memory.data_ptr(), DTYPES[place.memory.dtype], pieces, place.memory.numel())
    place.value = place.memory
