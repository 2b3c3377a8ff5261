"""The update of a layer's parameters is awaited just before fully_shard() gathers them, or when the program uses one
itself."""

from __future__ import annotations

import weakref

import torch

from .._model.departed import give_back_class, give_class
from .._weakly import weakly
from .parts import DTensor

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


def is_awaited(p) -> bool:
    """Whether the parameter may not have the last step's values yet."""
    return isinstance(p, _Watched)


def _groups_of(module) -> list:
    """What fully_shard() gathers together: the object that does it, and its parameters."""
    found = []
    for one in module.modules() if module is not None and FSDPModule is not None and _PLACE is not None else ():
        state = one._get_fsdp_state() if isinstance(one, FSDPModule) else None
        for group in getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]:
            if hasattr(group, "unshard") and hasattr(group, "fsdp_params"):
                found.append((group, [param.sharded_param for param in group.fsdp_params]))
    return found


class Waits:
    """``own``: the optimizer of this rank's part; ``parts``: see Parts."""

    def __init__(self, own, parts, module):
        self._own, self._parts = weakref.ref(own), parts
        self._pending: set = set()  # ids of parameters that may not have the last step's values
        self._blocks: dict = {}  # of the engine, by the parameter's id
        self._params: dict = {}
        self._late: set = set()  # blocks that step() waits for
        self._groups: list = []
        covered = {id(p) for _, params in _groups_of(module) for p in params}
        alone = {number for bucket in parts.buckets if bucket.count == 1 for number in bucket.numbers}
        for i, piece in enumerate(parts.pieces):
            p, block = parts.params[piece.number], own._session.layout.block_of[i]
            if id(p) in covered and piece.number in alone:
                self._blocks.setdefault(id(p), set()).add(block)
                self._params[id(p)] = p
            else:
                self._late.add(block)
        for group, params in _groups_of(module):
            mine = [id(p) for p in params if id(p) in self._blocks]
            if mine:
                group.unshard = _awaiting(group, weakref.ref(self), mine)
                self._groups.append(group)

    def end_step(self) -> None:
        """New values are on their way."""
        self._bring(self._late)
        self._pending = set(self._blocks)
        for key, p in self._params.items():
            _watchers[key] = weakly(self._await, [key])
            give_class(p, _Watched)

    def await_all(self) -> None:
        self._await(list(self._pending))

    def close(self) -> None:
        self.await_all()
        for group in self._groups:
            vars(group).pop("unshard", None)

    @torch.compiler.disable
    @torch.no_grad()
    def before_all_gather(self, group, keys: list) -> None:
        own, waiting = self._own(), [key for key in keys if key in self._pending]
        if own is None or not waiting:
            return
        own._session.expect_step()
        self._await(waiting)
        streams = [getattr(group.comm_ctx, name, None) for name in ("all_gather_copy_in_stream", "all_gather_stream")]
        for stream in streams:
            if isinstance(stream, torch.cuda.Stream):
                stream.wait_stream(torch.cuda.current_stream(stream.device))

    def _await(self, keys: list) -> None:
        self._bring({block for key in keys for block in self._blocks[key]})
        for key in keys:
            self._pending.discard(key)
            _watchers.pop(key, None)
            give_back_class(self._params[key], _Watched)

    def _bring(self, blocks) -> None:
        own = self._own()
        for block in sorted(blocks) if own is not None and own._session.has_begun else ():
            own._session.parameters.bring(block)


def _awaiting(group, waits, keys: list):
    original = group.unshard

    def unshard(*arguments, **named):
        alive = waits()
        if alive is not None:
            alive.before_all_gather(group, keys)
        return original(*arguments, **named)

    return unshard
