"""Adds up gradients in host memory between two backward passes. Used by sums.py."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import weakref

import torch

from .. import _engine, _ranks
from .._model.groups import DTYPES
from .._pinned import PinnedMemory, padded, views
from .lent import Lent

_STREAMS = 2  # one sum is read while another is written
_PINS_AT_ONCE = 4  # blocks
_SHARE_OF_FREE = 4  # at most one part in so many of the host's free memory is for gradients that wait
_ROOM_FOR_PAIRS = (
    0.75  # of a pass's gradients: half of them wait for the next pass, and those that come need room as well
)


def bytes_of_sums(params, dtype: torch.dtype) -> int:
    """Host memory for the sums of these parameters."""
    return sum(padded(dtype.itemsize * p.numel()) for p in params)


def bytes_of_waiting(params, share: float = 1) -> int:
    """Host memory for gradients of these parameters that wait: this share of those of a pass, in the parameters'
    format. The largest one fits, unless the share is 0."""
    sizes = [padded(p.numel() * p.element_size()) for p in params]
    return max(int(share * sum(sizes)), max(sizes, default=0)) if share else 0


def bounded_by_free(wanted: int, taken: int) -> int:
    """``taken``: bytes that the process is about to take beside them."""
    return min(wanted, max(0, _engine.free_host_memory() - taken) // _SHARE_OF_FREE)


class HostSum:
    """The place of a parameter's sum. ``memory`` has the format of sums; ``value`` is its last part, which holds the
    sum, or the first gradient in its own format. ``number``: the engine's of the place. ``waiting``: gradients that
    come on top of it, in their order, of which threads may have added the first ones. ``turn``: 0 or 1; it adds two
    gradients at once, in every other pass."""

    def __init__(self, memory, number: int, turn: int):
        self.memory, self.number, self.turn = memory, number, turn
        self.value = None
        self.used = None  # an event after the last copy from or to it, or of a gradient that waits
        self.waiting: list = []


class HostSums:
    """Gradients come in streams of their own, while backward goes on, and threads of the host add them. Those that find
    no room to wait for that, because the threads are late, are added by the GPU, which reads the sum, adds and writes
    it back. Each adds in the order in which gradients came, so a sum has the same bits as on the GPU. Without a GPU the
    same happens in host memory."""

    def __init__(
        self,
        conductor,
        device: torch.device,
        params: list,
        blocks: list,
        dtype: torch.dtype,
        encodes: bool,
        waiting_share: float = 1,
        spare=lambda: 0,
        lent: Lent | None = None,
    ):
        """``dtype``: of sums; ``encodes``: whether the engine's kernels add; ``waiting_share``: of a pass's gradients,
        which may wait; ``spare``: says how many more bytes of GPU memory gradients may now take on their way, which the
        next forward needs later; ``lent``: memory for some of the sums."""
        self._lent = Lent([], []) if lent is None else lent
        if self._lent.bytes:
            self._lent.open(conductor.lent_memory())
        self.begin_step()
        self._conductor, self._device, self._params, self._blocks = conductor, device, params, blocks
        self._dtype, self._encodes = dtype, encodes
        self._places: dict = {}  # of each parameter, when its block's memory is there
        self._waited: dict = {}  # futures of blocks
        self._spare = spare
        self._flying: collections.deque = collections.deque()  # pairs of bytes and an event
        self._in_flight = 0
        self._leaving: collections.deque = (
            collections.deque()
        )  # pairs of bytes and the engine's number of what reads them
        self._bytes_leaving = 0
        # One block may be on the way: its gradients in the parameters' format, and its sums. Or one parameter, if the
        # GPU adds what waits for it, too.
        of_sum = dtype.itemsize
        of_blocks = (
            sum(params[i].numel() * (params[i].element_size() + of_sum) for i in block.tensors) for block in blocks
        )
        self._most_bytes = max([*of_blocks, *(p.numel() * (2 * p.element_size() + of_sum) for p in params)])
        self._has_gpu = device.type == "cuda"
        self._streams = [torch.cuda.Stream(device) for _ in range(_STREAMS)] if self._has_gpu else []
        self._turn = 0
        self._joins = torch.cuda.Stream(device, priority=-1) if self._has_gpu else None
        self._pool = concurrent.futures.ThreadPoolExecutor(_PINS_AT_ONCE, thread_name_prefix="nearstep-pins")
        self._adders = _engine.HostSums(self._streams[0].device.index if self._has_gpu else None)
        weakref.finalize(self, self._adders.close)  # before the memory goes
        self._waiting_share = waiting_share
        self._room = None  # a tensor of bytes, in which gradients wait
        self._pairs = False  # whether gradients wait for the next ones: half as often, sums are read and written
        self._waited_room: concurrent.futures.Future | None = None

    @property
    def bytes_on_the_way(self) -> int:
        """The most GPU memory that sums and gradients take on their way here, and that sums take until the engine has
        read them."""
        return 2 * self._most_bytes

    def begin_step(self) -> None:
        self._may_use_lent = not self._lent.bytes

    @property
    def is_reserved(self) -> bool:
        return self._waited_room is not None

    def bytes_of(self, block: int) -> int:
        return bytes_of_sums((self._params[i] for i in self._blocks[block].tensors), self._dtype)

    def reserve(self, blocks) -> None:
        """Begins to take host memory for the blocks' sums, the first ones first; the first call also for their
        gradients that wait."""
        blocks = list(blocks)
        if blocks and self._waited_room is None:
            params = [self._params[i] for block in blocks for i in self._blocks[block].tensors]
            size = bounded_by_free(
                bytes_of_waiting(params, self._waiting_share), sum(self.bytes_of(block) for block in blocks)
            )
            self._pairs = size >= _ROOM_FOR_PAIRS * bytes_of_waiting(params)
            self._waited_room = self._pool.submit(PinnedMemory, size, self._device)
        for block in blocks:
            if block not in self._waited:
                size = bytes_of_sums((self._params[i] for i in self._not_lent(block)), self._dtype)
                self._waited[block] = self._pool.submit(PinnedMemory, size, self._device)

    def _not_lent(self, block: int) -> list:
        """Numbers of the block's parameters whose sums have memory of their own."""
        return [i for i in self._blocks[block].tensors if i not in self._lent]

    def _place(self, block: int, i: int) -> HostSum:
        if i not in self._places:
            self.reserve([block])
            own, tensors = self._not_lent(block), self._blocks[block].tensors
            like = {k: torch.empty(self._params[k].shape, dtype=self._dtype, device="meta") for k in tensors}
            turn = list(self._waited).index(block) % 2
            memory = dict(zip(own, views(self._waited[block].result().memory, [like[k] for k in own])))
            for k in tensors:
                one = memory[k] if k in memory else next(views(self._lent.memory(k, like[k].nbytes), [like[k]]))
                number = self._adders.add_place(one.data_ptr(), DTYPES[one.dtype], one.numel())
                self._places[k] = HostSum(one, number, turn)
        return self._places[i]

    # --- Sums ---

    def put(self, block: int, i: int, gradient) -> HostSum:
        """The first gradient of a step, or a sum that moves here."""
        if not self._may_use_lent:  # the engine reads the gradients of the last update there
            self._conductor.finish()
            self._may_use_lent = True
        place = self._place(block, i)
        with self._claimed(place, gradient, spare=True) as come:
            come()
            self._write(place, gradient)
        return place

    def add(self, place: HostSum, gradient, to_come: int | None = None) -> HostSum:
        """``to_come``: more gradients of the step after this one, which take() adds the last of; None: not known."""
        waits = self._room_for(gradient)
        if waits is None:
            with self._claimed(place, gradient) as come:
                self._write(place, self._sum(place, gradient, come))
            return place
        is_pair = self._pairs and to_come is not None and to_come > 1
        now = not is_pair or to_come % 2 == place.turn
        with self._next(place, gradient, gradient.nbytes, spare=True) as come:
            come()
            waits.copy_(gradient, non_blocking=True)
            place.waiting.append(waits)
            self._adders.add(place.number, waits.data_ptr(), DTYPES[waits.dtype], self._stream(), now)
        return place

    def _room_for(self, gradient):
        """Memory for a gradient that waits; None if there is no room."""
        if self._room is None and self._waited_room.done():
            self._give_room(self._waited_room.result().memory)
        address = self._adders.room_for(gradient.nbytes)
        if not address:
            return None
        begin = address - self._room.data_ptr()
        return self._room[begin : begin + gradient.nbytes].view(gradient.dtype).view(gradient.shape)

    def _give_room(self, memory) -> None:
        self._room = memory
        self._adders.give_room(memory.data_ptr(), memory.nbytes)

    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream if self._has_gpu else 0

    def take(self, place: HostSum, gradient=None):
        """The sum, with a last gradient if there is one, on the device. ``joined()`` waits for it."""
        while self._leaving and self._bytes_leaving > self._most_bytes:
            self._conductor.await_work(self._leaving[0][1])
            self._forget_left()
        with self._claimed(place, gradient) as come:
            return self._sum(place, gradient, come)

    def _sum(self, place: HostSum, gradient, come):
        have = place.value.to(self._device, non_blocking=True, copy=True)
        for one in place.waiting:
            have = add(have, one.to(self._device, non_blocking=True), self._dtype, self._encodes)
        if gradient is None:
            return have
        come()
        return add(have, gradient, self._dtype, self._encodes)

    def _write(self, place: HostSum, values) -> None:
        if self._lent.bytes and _ranks.is_fork():
            raise RuntimeError(
                "This process is a fork of the one that trains this model, whose sums of gradients it would overwrite: "
                "train another copy of the model here."
            )
        end = place.memory.view(-1).view(values.dtype)
        place.value = end[end.numel() - values.numel() :].view(values.shape)
        place.value.copy_(values, non_blocking=True)

    @contextlib.contextmanager
    def _claimed(self, place: HostSum, gradient, spare: bool = False):
        """Does what _next() does for the whole place. Inside, nobody else uses it; afterwards nothing waits for it,
        also none of the gradients of a step that was dropped."""
        waiting = self._adders.claim(place.number)
        if waiting < len(place.waiting):
            place.value = place.memory
        place.waiting = place.waiting[len(place.waiting) - waiting :]
        of_gradients = 0 if gradient is None else gradient.element_size()
        of_waiting = max((one.element_size() for one in place.waiting), default=0)
        size = place.memory.numel() * (place.memory.element_size() + of_gradients + of_waiting)
        with self._next(place, gradient, size, spare) as come:
            yield come
            self._adders.set(place.number, DTYPES[place.value.dtype], self._stream())
            place.waiting = []

    @contextlib.contextmanager
    def _next(self, place: HostSum, gradient, size: int, spare: bool = False):
        """Has the next stream, in which the last copy of the place is over. Yields a function after which the gradient
        is there. ``size``: bytes of GPU memory; ``spare``: only the gradient's own are there, of which more may be on
        their way."""
        if not self._has_gpu:
            yield lambda: None
            return
        now = torch.cuda.current_stream(self._device)
        self._make_way(size, spare)
        stream = self._streams[self._turn]
        self._turn = (self._turn + 1) % _STREAMS
        made = now.record_event()
        if place.used is not None:
            stream.wait_event(place.used)
        with torch.cuda.stream(stream):
            yield lambda: stream.wait_event(made)
        if gradient is not None:
            gradient.record_stream(stream)
        place.used = stream.record_event(torch.cuda.Event(blocking=True))  # a thread that waits for it leaves its core
        self._flying.append((size, place.used))
        self._in_flight += size

    def _make_way(self, size: int, spare: bool) -> None:
        """Waits until so much more may be on its way."""
        while self._flying and self._flying[0][1].query():
            self._land()
        most = self._most_bytes
        if spare and self._in_flight + size > most:
            most += self._spare()
        while self._flying and self._in_flight + size > most:
            self._land()

    def _land(self) -> None:
        gone, over = self._flying.popleft()
        over.synchronize()
        self._in_flight -= gone

    @contextlib.contextmanager
    def joined(self, values: list):
        """In here the device waits for the sums that were taken, in a stream of its own, so that backward does not.
        ``values``: tensors that are used in here, or None."""
        if not self._has_gpu:
            yield
            return
        for stream in self._streams:
            self._joins.wait_stream(stream)
        for value in values:
            if value is not None and value.is_cuda:
                value.record_stream(self._joins)
        with torch.cuda.stream(self._joins):
            yield

    def left(self, block: int, work: int) -> None:
        """The engine reads the block's sums. ``work``: its number of that."""
        self._forget_left()
        size = self.bytes_of(block)
        self._leaving.append((size, work))
        self._bytes_leaving += size

    def _forget_left(self) -> None:
        while self._leaving and self._conductor.is_done(self._leaving[0][1]):
            self._bytes_leaving -= self._leaving.popleft()[0]

    def close(self) -> None:
        """Gives the host memory back."""
        self._adders.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
        for future in (*self._waited.values(), *filter(None, [self._waited_room])):
            if not future.cancelled():
                future.result().close()
        self._room = self._waited_room = None
        self._waited.clear()
        self._places.clear()
        self._lent.close()


def add(have, gradient, dtype: torch.dtype, encodes_on_gpu: bool):
    """The sum of two gradients of one parameter, in ``dtype`` whatever their formats are; may reuse ``have``."""
    if dtype != torch.float32:
        return have.to(dtype).add_(gradient)
    if encodes_on_gpu and gradient.is_cuda and have.is_contiguous() and gradient.is_contiguous():
        # One pass over the memory: PyTorch takes two, and its kernel for mixed formats is slower.
        sums = have if have.dtype == torch.float32 else torch.empty_like(have, dtype=torch.float32)
        pieces = [(tensor.data_ptr(), DTYPES[tensor.dtype]) for tensor in (have, gradient)]
        _engine.add_on_gpu(
            sums.data_ptr(), *pieces, sums.numel(), torch.cuda.current_stream(gradient.device).cuda_stream
        )
        return sums
    return have.float().add_(gradient)
