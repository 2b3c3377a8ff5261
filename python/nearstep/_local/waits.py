"""Brings the new values while the next forward computes. A layer's are awaited just before fully_shard() gathers it or
its forward begins, or when the program uses one itself. Used by optimizer.py."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
import os
import weakref

import torch

from .. import _hooks
from .._model import watch
from .._model.departed import give_back_class, give_class
from .._weakly import weakly
from . import world
from .parts import DTensor, is_sharded

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # a PyTorch that has it elsewhere, or without torch.distributed
    FSDPModule = None

_PLACE = None if DTensor is None else DTensor.__dict__.get("_local_tensor")
_watchers: dict = {}  # a function to call, by the parameter's id


def _use(p) -> None:
    """The parameter is a plain DTensor afterwards."""
    watcher = _watchers.pop(id(p), None)
    give_back_class(p, _Watched)
    if watcher is not None:
        watcher()


class _Watched:
    """Comes before DTensor: whatever computes with one asks for the local tensor."""

    @property
    def _local_tensor(self):
        _use(self)
        return _PLACE.__get__(self)

    @_local_tensor.setter
    def _local_tensor(self, value):
        _use(self)
        _PLACE.__set__(self, value)

    def __deepcopy__(self, memo):
        _use(self)
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol):
        _use(self)
        return self.__reduce_ex__(protocol)


def _watch(p, watcher) -> None:
    if not is_sharded(p):
        watch.watch(p, watcher)
        return
    _watchers[id(p)] = watcher
    give_class(p, _Watched)


def _release(p) -> None:
    if not is_sharded(p):
        watch.release(p)
        return
    _watchers.pop(id(p), None)
    give_back_class(p, _Watched)


def is_awaited(p) -> bool:
    """Whether the parameter may not have the last step's values yet."""
    return isinstance(p, (_Watched, watch._Watched))


def _modules_of(module) -> list:
    """Returns the modules that fully_shard() was called with: those in the module, or in the program if only tensors
    are known."""
    if FSDPModule is None or _PLACE is None:
        return []
    found = gc.get_objects() if module is None else module.modules()
    return [one for one in found if issubclass(type(one), FSDPModule)]


def outermost(params: list):
    """Returns the outermost module that fully_shard() was called with and that has some of these parameters; a list if
    there are several, None if there is none."""
    ids = set(map(id, params))
    found = [one for one in _modules_of(None) if not ids.isdisjoint(map(id, one.parameters()))]
    inner = {id(child) for one in found for child in one.modules() if child is not one}
    found = [one for one in found if id(one) not in inner]
    return found[0] if len(found) == 1 else torch.nn.ModuleList(found) if found else None


def _groups_of(module) -> list:
    """Returns the groups of parameters that fully_shard() gathers together: the object that gathers, and the
    parameters."""
    found = []
    for one in _modules_of(module):
        state = one._get_fsdp_state()
        for group in getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]:
            if hasattr(group, "unshard") and hasattr(group, "fsdp_params"):
                found.append((group, [param.sharded_param for param in group.fsdp_params]))
    return found


class Waits:
    """``optimizer``: that of all ranks; ``own``: the one of this rank's part; ``parts``: see Parts.

    Where ranks bring each other values, a thread does it, in the order of the buckets and in process groups in which
    nobody else acts. So it goes on on all ranks whatever their programs do, also if only one of them uses a parameter.
    """

    def __init__(self, optimizer, own, parts, module):
        self._own, self._parts = weakref.ref(own), parts
        self._module = None if module is None else weakref.ref(module)
        self._units = self._count_units()
        self._blocks: list = [set() for _ in parts.buckets]  # of the engine, by bucket
        self._pending: set = set()  # buckets that may not have the last step's values
        self._unseen: set = set()  # buckets for which the streams of fully_shard() have not waited since the last step
        self._jobs: list = []  # of the thread, by bucket
        self._bucket_of = {number: i for i, bucket in enumerate(parts.buckets) for number in bucket.numbers}
        for i, piece in enumerate(parts.pieces):
            self._blocks[self._bucket_of[piece.number]].add(own._session.layout.block_of[i])
        self._groups: list = []
        places = {id(p): i for i, p in enumerate(parts.params) if i in self._bucket_of}
        covered = set()
        for group, params in _groups_of(module):
            numbers = [places[id(p)] for p in params if id(p) in places]
            covered.update(numbers)
            if numbers:
                group.unshard = _awaiting(group, weakref.ref(self), {self._bucket_of[number] for number in numbers})
                self._groups.append(group)
        self._handles, hooked = _hook(optimizer, module, parts.layout.reads, covered)
        self._late = {self._bucket_of[number] for number in self._bucket_of if number not in covered | hooked}
        self._carrier = self._stream = None
        if any(bucket.count > 1 for bucket in parts.buckets):
            self._open_carrier()

    def _open_carrier(self) -> None:
        self._carrier = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="nearstep-gathers")
        world.await_before_destroying(self)
        devices = {bucket.key[-1] for bucket in self._parts.buckets}
        self._device = next((device for device in devices if device.type == "cuda"), None)
        if self._device is None:
            return
        self._stream = torch.cuda.Stream(self._device)
        self._events = [torch.cuda.Event() for _ in self._parts.buckets]
        if os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":  # NCCL's groups would wait for each other there
            self._late = set(range(len(self._parts.buckets)))

    def _count_units(self) -> int:
        module = None if self._module is None else self._module()
        return 0 if module is None else len(_modules_of(module))

    def refuse_new_units(self) -> None:
        if self._count_units() > self._units:
            raise RuntimeError(
                "fully_shard() has replaced parameters since training began: call it before opt.resume() and the "
                "first forward."
            )

    # --- The end of a step ---

    def end_step(self) -> None:
        """New values are on their way."""
        buckets = self._parts.buckets
        self._pending, self._unseen = set(range(len(buckets))), set(range(len(buckets)))
        if self._carrier is not None:
            if self._stream is not None:
                self._stream.wait_stream(torch.cuda.current_stream(self._device))
            flats = [
                [self._parts.flat(number) for number in bucket.numbers] if bucket.count > 1 else []
                for bucket in buckets
            ]
            self._jobs = [self._carrier.submit(self._carry, i, flats[i]) for i in range(len(buckets))]
        for number, i in self._bucket_of.items():
            _watch(self._parts.params[number], weakly(self._await, [i]))
        self._await(self._late)

    @torch.no_grad()
    def _carry(self, i: int, flats: list) -> None:
        """Runs in the thread."""
        with contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream):
            self._bring(i)
            if flats:
                self._parts.buckets[i].gather(flats)
            if self._stream is not None:
                self._events[i].record(self._stream)

    def _bring(self, i: int) -> None:
        own = self._own()
        for block in sorted(self._blocks[i]) if own is not None and own._session.has_begun else ():
            own._session.parameters.bring(block)

    # --- Waiting ---

    def await_all(self) -> None:
        self._await(list(self._pending))

    @torch.no_grad()
    def _await(self, buckets) -> None:
        for i in sorted(self._pending.intersection(buckets)):
            if self._carrier is None:
                self._bring(i)
            else:
                self._jobs[i].result()
                if self._stream is not None:
                    torch.cuda.current_stream(self._device).wait_event(self._events[i])
            self._pending.discard(i)
            for number in self._parts.buckets[i].numbers:
                _release(self._parts.params[number])

    @torch.compiler.disable
    def before_all_gather(self, group, buckets: set) -> None:
        own, unseen = self._own(), self._unseen & buckets
        if own is None or not unseen:
            return
        self._expect_step()
        self._await(unseen)
        self._unseen -= unseen
        for name in ("all_gather_copy_in_stream", "all_gather_stream"):
            stream = getattr(group.comm_ctx, name, None)
            for i in unseen if isinstance(stream, torch.cuda.Stream) else ():
                self._wait_in(stream, i)

    def _wait_in(self, stream, i: int) -> None:
        """Work that the stream gets from now on sees the bucket's values, which are on their way."""
        if self._stream is not None:
            stream.wait_event(self._events[i])
            return
        for block in self._blocks[i]:
            self._own()._session.parameters.wait_in(stream, block)

    def before_forward(self, blocks: list) -> None:
        """``blocks``: of all parameters."""
        if self._pending:
            self._expect_step()
            self._await({i for i in self._pending if self._parts.buckets[i].block in blocks})

    def _expect_step(self) -> None:
        own = self._own()
        if torch.is_grad_enabled() and own is not None and own._session.has_begun:
            own._session.expect_step()

    # --- The end ---

    def close(self) -> None:
        try:
            self.await_all()
        finally:
            for handle in self._handles:
                handle.remove()
            for group in self._groups:
                vars(group).pop("unshard", None)
            if self._carrier is not None:
                self._carrier.shutdown()
                self._parts.leave_groups()


def _hook(optimizer, module, reads: list, covered: set) -> tuple:
    """Hooks on modules that read parameters which fully_shard() does not gather: their handles, and these parameters'
    numbers."""
    uncovered = [(owner, blocks, numbers) for owner, blocks, numbers in reads if not covered.issuperset(numbers)]
    if module is None or not uncovered:
        return [], set()
    readers = _hooks.Readers(optimizer, module, uncovered)
    return [readers], set() if readers.is_read_elsewhere else {
        number for *_, numbers in uncovered for number in numbers
    }


def _awaiting(group, waits, buckets: set):
    original = group.unshard

    def unshard(*arguments, **named):
        alive = waits()
        if alive is not None:
            alive.before_all_gather(group, buckets)
        return original(*arguments, **named)

    return unshard
