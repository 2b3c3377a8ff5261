"""Whether an optimizer is of ranks that PyTorch has started, and what is refused there. Used by _optimizer.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from .. import _ranks
from . import folders, world
from .engines import paths_of
from .parts import is_sharded

Method = TypeVar("Method", bound=Callable)

_INSTEAD = {
    "stream": "fully_shard() divides the layers over the ranks, and its CPUOffloadPolicy keeps them on the host",
    "weights": "load the model as its own program does, such as by torch.distributed.checkpoint",
    "gpu_memory_gb": "gradients stay where PyTorch has them",
}


def wants_local(params: list, given: dict) -> bool:
    """Raises ValueError for settings that ranks of PyTorch's do not have, and RuntimeError for ranks that cannot find
    each other."""
    has_shards = any(map(is_sharded, params))
    if _ranks.are_of_mpi():
        if has_shards:
            raise ValueError(
                "The parameters are DTensors, which PyTorch divides over ranks that it starts itself: "
                "start them with torchrun in place of nearstep-run."
            )
        return False
    _ranks.check_launcher(world.are_several())
    if not has_shards and not world.are_several() and not folders.has_parts(paths_of(given)[0]):
        return False
    for name, instead in _INSTEAD.items():
        if given[name] is not None:
            raise ValueError(
                f"{name}= is for ranks that nearstep-run starts, and these are PyTorch's: leave it out; {instead}."
            )
    if given["clipping"] != "exact":
        raise ValueError(
            'clipping="delayed" lets an update begin in backward, and ranks of PyTorch begin it in '
            "step(): leave it out."
        )
    return True


def may_turn_local(method: Method) -> Method:
    """fully_shard() may have replaced the parameters since the optimizer was made, as Accelerate calls it: the call is
    the local optimizer's then."""

    @functools.wraps(method)
    def call(self, *arguments, **named):
        turned = self._has_turned_local()
        return (getattr(self, method.__name__) if turned else functools.partial(method, self))(*arguments, **named)

    return call  # type: ignore[return-value]
