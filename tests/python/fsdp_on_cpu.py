"""Accelerate calls fully_shard() for GPUs alone. In this process it does so for ranks on the CPU, too."""

import os

import accelerate.state
from accelerate.utils import DistributedType

os.environ["ACCELERATE_USE_CPU"] = "true"
_begin = accelerate.state.AcceleratorState.__init__


def _with_fsdp(self, *arguments, fsdp_plugin=None, **named):
    _begin(self, *arguments, fsdp_plugin=fsdp_plugin, **named)
    if fsdp_plugin is not None and self.device.type == "cpu":
        self.fsdp_plugin = fsdp_plugin
        self.distributed_type = accelerate.state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP


accelerate.state.AcceleratorState.__init__ = _with_fsdp
