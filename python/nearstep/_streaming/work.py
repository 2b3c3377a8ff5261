"""Computes a layer in its slot. Used by streaming.py."""

from __future__ import annotations

import inspect

import torch

from .._torch_private import OptimizeContext


class Work:
    """The forward of a layer. Where the program compiles the layer by ``module.compile()``, the forward is compiled
    with the same settings in its place, so that the slot is outside of what is compiled."""

    def __init__(self, module: torch.nn.Module):
        self._module, self.forward = module, module.forward
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
        """The module is as the program has compiled it."""
        if self._compiled is not None and self._module._compiled_call_impl is None:
            self._module._compiled_call_impl = self._compiled
