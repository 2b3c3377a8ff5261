"""Whether an optimizer is of ranks that PyTorch has started, and what is refused there."""

from __future__ import annotations

from .. import _ranks
from . import folders, start, world
from .parts import is_sharded

_INSTEAD = {
    "stream": "fully_shard() divides the layers over the ranks, and its CPUOffloadPolicy keeps them on the host",
    "weights": "load the model as its own program does, such as by torch.distributed.checkpoint",
    "gpu_memory_gb": "gradients stay where PyTorch has them",
}


def wants_local(params: list, given: dict) -> bool:
    """Raises ValueError for settings that ranks of PyTorch's do not have, and RuntimeError for ranks that cannot find
    each other."""
    has_shards = any(map(is_sharded, params))
    path = start.paths_of(given)[0]
    has_parts = folders.has_parts(path)
    if _ranks.are_of_mpi():
        if has_shards:
            raise ValueError(
                "The parameters are DTensors, which PyTorch divides over ranks that it starts itself: "
                "start them with torchrun in place of nearstep-run."
            )
        if has_parts and not given["fresh"]:
            raise ValueError(
                f"{path} holds the state of ranks that PyTorch started, with a part of the model each: "
                f"start them with torchrun, or choose another path."
            )
        return False
    _ranks.check_launcher(world.are_several())
    if not has_shards and not world.are_several() and not has_parts:
        return False
    if folders.has_whole(path) and not has_parts and not given["fresh"]:
        raise ValueError(
            f"{path} holds a state of nearstep-run or of one process, which ranks that PyTorch started "
            f"cannot divide: choose another path, and start from the weights of that "
            "run's opt.export()."
        )
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
