"""Answers PyTorch's clipping by norm, which Transformers, Accelerate and Lightning call. Used by _optimizer.py and
intake.py."""

from __future__ import annotations

import functools
import math

import torch

from .._model.departed import Departed


def answer_clipping() -> None:
    """``torch.nn.utils.clip_grad_norm_`` tells the optimizer to clip if gradients are with it, and returns the norm of
    the last finished step. Trainer asks so for the norm alone, with an infinite limit."""
    original = torch.nn.utils.clip_grad_norm_
    if hasattr(original, "_nearstep"):
        return

    @functools.wraps(original)
    def clip(parameters, max_norm, norm_type=2.0, *arguments, **settings):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        left = next((p.grad for p in parameters if isinstance(p.grad, Departed)), None)
        if left is not None:
            return torch.tensor(left.clip(parameters, float(max_norm), float(norm_type)))
        return original(parameters, max_norm, norm_type, *arguments, **settings)

    clip._nearstep = True
    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip


class Clipping:
    """The engine clips in place of the program's calls, by the norm over all ranks. ``norm``: the largest one of a
    gradient; 0: no clipping."""

    def __init__(self, params: list, norm: float):
        self._params, self.norm = params, norm
        self._is_of_calls = False  # the norm is that of the program's calls
        self._is_asked = False  # in this step

    def begin_step(self) -> None:
        self._is_asked = False

    def ask(self, params: list, max_norm: float, norm_type: float, may_have_left: bool) -> None:
        """The program clips the gradients of ``params``: the engine does so in this and all later steps."""
        if max_norm == math.inf:
            return
        if not max_norm > 0:
            raise RuntimeError(
                f"clip_grad_norm_() has max_norm={max_norm:g}: nearstep clips to a norm above 0. Leave the call out, "
                "or pass keep_gradients=True."
            )
        if max_norm == self.norm and norm_type == 2:
            self._is_asked = True
            return
        asked, here = ({id(p) for p in of if p.grad is not None} for of in (params, self._params))
        if norm_type != 2 or asked != here:
            raise RuntimeError(
                "clip_grad_norm_() was called with norm_type other than 2, or without some parameters of the "
                "optimizer or with others: pass clip_norm=... to each optimizer, or keep_gradients=True."
            )
        if self.norm or may_have_left:
            raise RuntimeError(
                f"clip_grad_norm_() has max_norm={max_norm:g} where the optimizer has "
                f"clip_norm={self.norm or None}, and gradients may have left: make the optimizer with "
                f"clip_norm={max_norm:g}."
            )
        self.norm = max_norm
        self._is_asked = self._is_of_calls = True

    def check(self) -> None:
        """Raises RuntimeError at the end of a step without the call of the steps before."""
        if self._is_of_calls and not self._is_asked and any(isinstance(p.grad, Departed) for p in self._params):
            raise RuntimeError(
                "clip_grad_norm_() was called in steps before and not in this one, whose gradients may have left to "
                f"be clipped: make the optimizer with clip_norm={self.norm:g}, which clips every step, or with "
                "keep_gradients=True."
            )
