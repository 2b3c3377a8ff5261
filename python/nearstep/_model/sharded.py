"""Refuses parameters of which this process has only a part, or which are parts of others: nearstep trains whole ones."""

from __future__ import annotations

import sys

_INSTEAD = "nearstep itself adds up the gradients of all ranks and divides the optimizer state among them."


def refuse(named) -> None:
    """``named``: pairs of a name and a parameter. Raises ValueError for the first one that another library has divided."""
    dtensors = _dtensors()
    for name, p in named:
        if isinstance(p, dtensors):
            _refuse_dtensor(name)
        if hasattr(p, "_fsdp_flattened"):  # FSDP marks its flat parameters so, and those that have become parts of one
            raise ValueError(f"{name} is part of PyTorch's FullyShardedDataParallel: leave this wrapper out, since {_INSTEAD}")
        if hasattr(p, "ds_numel"):
            raise ValueError(f"{name} was divided by DeepSpeed's ZeRO-3: build the model without deepspeed.zero.Init, or in "
                             f"nearstep.empty(), since {_INSTEAD}")


def _dtensors() -> tuple:
    """PyTorch's class of them, if the program has imported it; the second module is that of PyTorch 2.4."""
    modules = map(sys.modules.get, ("torch.distributed.tensor", "torch.distributed._tensor"))
    return tuple({module.DTensor for module in modules if hasattr(module, "DTensor")})


def _refuse_dtensor(name: str) -> None:
    raise ValueError(f"{name} is a DTensor, as after fully_shard() or parallelize_module(), and nearstep trains plain parameters: "
                     f"leave these calls out, since {_INSTEAD}")
