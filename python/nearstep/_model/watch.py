"""Watches parameters that do not have the last step's values yet: whoever uses one gets it when it is here. Used by
parameters.py and _streaming/streaming.py.

Such a parameter is of a class that PyTorch asks before it computes with it. In a forward the hooks before the modules
bring the parameters first, so that no computation of a layer asks.
"""

from __future__ import annotations

import functools

import torch

from .._torch_private import TAKERS_OF_TENSORS, DisableTorchFunctionSubclass
from .departed import ABOUT, give_back_class, give_class, instances_in

_watchers: dict = {}  # a function to call, by the parameter's id


def _is_about(func, args, kwargs) -> bool:
    """Whether a function asks a parameter about itself and not about its values. Its text has them, and so has what
    type(dtype) returns.
    """
    if func not in ABOUT or func in (torch.Tensor.__repr__, torch.Tensor.__format__):
        return False
    return func != torch.Tensor.type or (len(args) == 1 and not kwargs)


def _use(p) -> None:
    """The parameter is a plain one afterwards."""
    watcher = _watchers.get(id(p))
    with DisableTorchFunctionSubclass():
        if watcher is not None:
            watcher()
        if isinstance(p, _Watched):
            release(p)


class _Watched:
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not _is_about(func, args, kwargs):
            for p in (*instances_in(_Watched, args), *instances_in(_Watched, kwargs.values())):
                _use(p)
        with DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def __deepcopy__(self, memo):
        _use(self)
        return self.__deepcopy__(memo)

    # PyTorch does not ask the class in these.

    def set_(self, *arguments, **named):
        _use(self)
        return self.set_(*arguments, **named)

    def as_subclass(self, cls):
        _use(self)
        return self.as_subclass(cls)

    def __reduce_ex__(self, protocol):
        _use(self)
        return self.__reduce_ex__(protocol)


def _using(function):
    """Wraps a function of PyTorch that computes with tensors without asking their class, so that it uses watched
    ones."""

    @functools.wraps(function)
    def use_first(*arguments, **named):
        if torch.compiler.is_compiling():  # before PyTorch 2.6
            return function(*arguments, **named)
        for p in (*instances_in(_Watched, arguments), *instances_in(_Watched, named.values())):
            _use(p)
        return function(*arguments, **named)

    if hasattr(torch.compiler, "substitute_in_graph"):  # since PyTorch 2.6
        torch.compiler.substitute_in_graph(use_first)(function)  # what is compiled is PyTorch's
    return use_first


def _bring_for_functions() -> None:
    """PyTorch's own code in Python takes tensors without asking their class: torch.func's transforms and autograd do
    so, and a new Parameter and swap_tensors() take the class for a part of the tensor."""
    for home, name in (
        *TAKERS_OF_TENSORS,
        (torch.nn.Parameter, "__new__"),
        (torch.utils, "swap_tensors"),
    ):
        if hasattr(home, name):
            function = _using(getattr(home, name))
            setattr(home, name, staticmethod(function) if isinstance(home, type) else function)


def watch(p, watcher) -> None:
    """Calls ``watcher`` before the parameter is used next, which releases it."""
    _watchers[id(p)] = watcher
    give_class(p, _Watched)


def release(p) -> None:
    """The parameter is a plain one from here on."""
    _watchers.pop(id(p), None)
    give_back_class(p, _Watched)


_bring_for_functions()
