"""Shows a state that lies in storage as ``opt.state`` and ``opt.state_dict()``. Used by _optimizer.py."""

from __future__ import annotations

import collections
import collections.abc
import json
import re

import torch

from .._torch_private import DisableTorchFunctionSubclass

_CLEARED = (
    "The optimizer state lies in storage and cannot be set or cleared here: make a new optimizer with fresh=True to "
    "reset the moments."
)


class _Shown(torch.Tensor):
    """A copy of what is in storage. Whoever writes to it would change nothing."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.__name__
        written = [
            kwargs.get("out"),
            *(args[:1] if name == "__setitem__" or re.fullmatch(r"(__i\w+__|.*[^_]_)", name) else ()),
        ]
        if any(
            isinstance(one, cls) for many in written for one in (many if isinstance(many, (list, tuple)) else [many])
        ):
            raise RuntimeError(_CLEARED)
        with DisableTorchFunctionSubclass():
            found = func(*args, **kwargs)
        return found.as_subclass(cls) if func == torch.Tensor.data.__get__ or name == "detach" else found

    def _plain(self):
        with DisableTorchFunctionSubclass():
            return self.as_subclass(torch.Tensor)

    def __reduce_ex__(self, protocol):
        return self._plain().__reduce_ex__(protocol)

    def __deepcopy__(self, _):
        return self._plain().clone()


class OfParameter(collections.abc.MutableMapping):
    """``opt.state[p]``: ``step``; and the parameter's master and moments by name, which are read from storage when they
    are asked for (on one rank; reads the whole state once). Whoever goes through all entries, such as Lightning, which
    moves them to another device, finds ``step`` alone."""

    def __init__(self, optimizer, i: int):
        self._optimizer, self._i = optimizer, i

    def _stored(self) -> tuple:
        return ("master", *filter(None, self._optimizer._moments)) if self._optimizer.has_begun else ()

    def __getitem__(self, name: str):
        if name == "step":
            return torch.tensor(float(self._optimizer._updates_of(self._i))).as_subclass(_Shown)
        if name not in self._stored():
            raise KeyError(name)
        return self._optimizer._read_state(self._i)[name].as_subclass(_Shown)

    def __contains__(self, name) -> bool:
        return name == "step" or name in self._stored()

    def __iter__(self):
        return iter(("step",))

    def __len__(self) -> int:
        return 1

    def __setitem__(self, *_):
        raise RuntimeError(_CLEARED)

    __delitem__ = __setitem__

    def __repr__(self) -> str:
        return f"<state in storage: {', '.join(('step', *self._stored()))}>"


class OfAll(collections.abc.Mapping):
    """``opt.state``: one entry for each trained parameter."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def _numbers(self) -> dict:
        return {id(p): i for i, p in enumerate(self._optimizer._params)}

    def __getitem__(self, p):
        i = self._numbers().get(id(p))
        if i is None:
            raise KeyError("The optimizer does not train this parameter.")
        return OfParameter(self._optimizer, i)

    def __contains__(self, p) -> bool:
        return id(p) in self._numbers()

    def __iter__(self):
        return iter(self._optimizer._params)

    def __len__(self) -> int:
        return len(self._optimizer._params)

    def _refuse(self, *_, **__):
        raise RuntimeError(_CLEARED)

    __setitem__ = __delitem__ = clear = pop = popitem = update = setdefault = _refuse


class Place(str):
    """Says in JSON where the state is, as text, which tools that flatten and gather states keep whole. Whoever pickles
    it needs the state of that step later, as does who copies it deeply, so that a checkpoint is written then if there
    is none."""

    def __new__(cls, entries: dict, make_durable):
        """``make_durable``: takes the entries and returns those to pickle."""
        place = super().__new__(cls, json.dumps(entries))
        place._entries, place._make_durable = entries, make_durable
        return place

    def __reduce_ex__(self, _):
        return collections.OrderedDict, (
            list(self._make_durable(self._entries).items()),
        )  # torch.load makes no other text

    def __copy__(self):
        return self

    def __deepcopy__(self, _):
        return Place(self._make_durable(self._entries), self._make_durable)
