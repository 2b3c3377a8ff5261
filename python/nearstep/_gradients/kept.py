"""Gradients that stay in p.grad until step(), as keep_gradients=True asks. Used by intake.py."""

from __future__ import annotations

import torch

from .._torch_private import current_graph_task_id


class Kept:
    """Says when such gradients come, and which of them the program has set to zero since."""

    def __init__(self, params: list, before_pass, note):
        """``before_pass()``: called before the first gradient of a backward pass; ``note(i)``: when one has come."""
        self._params, self._before_pass, self._note = params, before_pass, note
        self._pass = -1  # autograd's number of the last one
        self._versions = [0] * len(params)  # of the gradients when they came

    @torch.no_grad()
    def before(self, i: int, _) -> None:
        """A gradient of the parameter comes. Runs on a thread of autograd."""
        number = current_graph_task_id()
        if number != self._pass:
            self._pass = number
            self._before_pass()

    @torch.no_grad()
    def take(self, i: int, _) -> None:
        """The gradient is in p.grad. Runs on a thread of autograd."""
        self._versions[i] = self._params[i].grad._version
        self._note(i)

    def is_zeroed(self, i: int) -> bool:
        grad = self._params[i].grad
        return grad._version != self._versions[i] and not grad.any()
