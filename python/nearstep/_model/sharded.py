"""Refuses parameters of which this process has only a part, or which are parts of others: nearstep trains whole
ones. Used by _optimizer.py and _local/optimizer.py."""

from __future__ import annotations

_INSTEAD = "nearstep itself adds up the gradients of all ranks and divides the optimizer state among them."


def refuse(named) -> None:
    """``named``: pairs of a name and a parameter. Raises ValueError for the first one that another library
    has divided.
    """
    for name, p in named:
        if hasattr(p, "_fsdp_flattened"):  # FSDP marks its flat parameters so, and those that have become parts of one
            raise ValueError(
                f"{name} is part of PyTorch's FullyShardedDataParallel: use "
                "torch.distributed.fsdp.fully_shard() in its place, or leave it out, since "
                f"{_INSTEAD}"
            )
        if hasattr(p, "ds_numel"):
            raise ValueError(
                f"{name} was divided by DeepSpeed's ZeRO-3: build the model without deepspeed.zero.Init, or in "
                f"nearstep.empty(), since {_INSTEAD}"
            )
