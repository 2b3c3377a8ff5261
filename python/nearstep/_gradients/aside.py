"""Sets aside what stands in p.grad while gradients come: torch.autograd.grad() leaves it there. Used by intake.py."""

from __future__ import annotations

from .._torch_private import current_graph_task_id, queue_callback
from .._weakly import weakly


class Aside:
    """Holds it until the end of the backward pass, and puts it back where no gradient came to p.grad."""

    def __init__(self, params: list):
        self._params = params
        self._of_pass: dict = {}  # pairs of a parameter's number and what stood there, by autograd's number of the pass

    def put(self, i: int) -> None:
        """A gradient of the parameter comes. Runs on a thread of autograd."""
        stood = self._params[i].grad
        if stood is None:
            return
        number = current_graph_task_id()
        if number not in self._of_pass:
            self._of_pass[number] = []
            queue_callback(weakly(self._put_back, number))
        self._of_pass[number].append((i, stood))
        self._params[i].grad = None

    def _put_back(self, number: int) -> None:
        for i, stood in self._of_pass.pop(number, ()):
            if self._params[i].grad is None:
                self._params[i].grad = stood

    def clear(self) -> None:
        """Drops what an error in a pass has left."""
        self._of_pass.clear()
