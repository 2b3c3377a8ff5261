"""Computes a layer in its slot. Used by streaming.py."""

from __future__ import annotations

import functools
import inspect

import torch

from .._torch_private import OptimizeContext
from . import left


class Work:
    """The forward of a layer. Where the program compiles the layer by ``module.compile()``, the forward is compiled
    with the same settings in its place, so that the slot is outside of what is compiled."""

    def __init__(self, module: torch.nn.Module):
        self._module, self.forward = module, module.forward
        self._own = module.__dict__.get("forward")  # None: that of the module's class
        self._compiled = None  # the program's
        self._work = module.forward
        self.latest()

    def latest(self):
        """The forward, compiled if the program has compiled the layer by now."""
        compiled = getattr(self._module, "_compiled_call_impl", None)
        if compiled is not None:
            self._module._compiled_call_impl = None
            self._compiled = compiled
            settings = inspect.getclosurevars(compiled).nonlocals.get("self")
            self._work = (
                settings(self.forward) if isinstance(settings, OptimizeContext) else torch.compile(self.forward)
            )
        return self._work

    def give_back(self) -> None:
        """The module has the forward that it had, and is as the program has compiled it."""
        self._module.__dict__.pop("forward")
        if self._own is not None:
            self._module.forward = self._own
        if self._compiled is not None and self._module._compiled_call_impl is None:
            self._module._compiled_call_impl = self._compiled


def wrap(me, module: torch.nn.Module, number: int) -> Work:
    """Makes the forward of layer ``number`` pass through a slot. ``me``: a weak reference to the Streaming."""
    left.unmark(module)
    work = Work(module)

    @torch.compiler.disable
    def through_slot(*arguments, **settings):
        streaming = me()
        if streaming is None or not streaming.is_open:
            return work.latest()(*arguments, **settings)
        return streaming.run(number, work.latest(), arguments, settings)

    module.forward = _Streamed(through_slot, work.forward)
    return work


class _Streamed:
    """The forward of a streamed layer."""

    def __init__(self, through_slot, forward):
        functools.update_wrapper(self, forward)
        self._through_slot = through_slot

    def __call__(self, *arguments, **settings):
        return self._through_slot(*arguments, **settings)

    def __reduce_ex__(self, _):
        raise RuntimeError(
            "A streamed model cannot be pickled, because the copy would compute with its parameters: save its "
            "state_dict(), or call close() before."
        )

    def __deepcopy__(self, _):
        raise RuntimeError(
            "A streamed model cannot be copied, because the copy would compute with its parameters: copy it before "
            "the optimizer is made, or after close()."
        )
