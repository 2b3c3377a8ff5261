"""Adapts PyTorch's own distributed training to nearstep's ranks. Used by __init__.py."""

import os

import torch

from . import _ranks


def _keep_passive(wrapper, _name, module) -> None:
    """DistributedDataParallel, in which Accelerate puts a model on several ranks, would sum gradients that nearstep has
    taken: it gets none of a module that nearstep trains alone."""
    if not isinstance(wrapper, torch.nn.parallel.DistributedDataParallel):
        return

    def before_forward(ddp, *_):
        mine = {id(p) for optimizer in _ranks.optimizers() for p in optimizer._params}
        trained = [p for p in module.parameters() if p.requires_grad]
        if mine and all(id(p) in mine for p in trained):
            ddp.require_backward_grad_sync = False

    wrapper.register_forward_pre_hook(before_forward)


if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not torch.cuda.is_available():
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # Accelerate would take each rank for the only process
torch.nn.modules.module.register_module_module_registration_hook(_keep_passive)  # also for a group of one process
