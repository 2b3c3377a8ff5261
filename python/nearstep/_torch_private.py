"""Has every private name of PyTorch that the package uses, and says what it is for. Imported by all files that need
one. tests/architecture/check_layers.py keeps such names out of other files, and tests/python/torch_private_test.py
tries them.

A name is there in every PyTorch from 2.4 on, unless its sentence says since when it is there.
"""

from __future__ import annotations

import torch
import torch._dynamo
import torch._functorch.eager_transforms
import torch._functorch.pyfunctorch
import torch._functorch.vmap
import torch._guards
import torch._ops
import torch.utils._python_dispatch
import torch.utils._pytree

try:  # DTensors, and which elements of one this rank has
    from torch.distributed.tensor import DTensor  # since PyTorch 2.5
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
except ImportError:  # an older PyTorch, or one without torch.distributed
    DTensor = compute_local_shape_and_global_offset = None

# --- Functions and classes of modules ---

# Within this context no tensor's class is asked before PyTorch computes with the tensor.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass
# Within this context neither a tensor's class nor a mode of the program's is asked.
DisableTorchFunction = torch._C.DisableTorchFunction
# Reads the records of an archive that torch.save() wrote.
PyTorchFileReader = torch._C.PyTorchFileReader
# Whether a tensor has memory; a wrapper of other tensors has none.
has_storage = torch._C._has_storage
# The number of the backward pass that this thread works for; -1 outside of one.
current_graph_task_id = torch._C._current_graph_task_id
# Whether backward() runs without inputs=, so that gradients may go to parameters.
is_checkpoint_valid = torch.autograd._is_checkpoint_valid
# Calls a function at the end of the backward pass that runs.
queue_callback = torch.autograd.Variable._execution_engine.queue_callback
# Makes a tensor of a class of the package's that has a shape and no memory.
make_wrapper_subclass = torch.Tensor._make_wrapper_subclass
# Norms of many tensors in one call.
foreach_norm = torch._foreach_norm
# PyTorch's module.to() asks this of a gradient before it moves it.
has_compatible_shallow_copy_type = torch._has_compatible_shallow_copy_type
# The innermost of torch.func's transforms in which the program is; None outside of them.
peek_interpreter_stack = torch._C._functorch.peek_interpreter_stack
# Within this context, or in a function that it decorates, torch.func's transforms do not see what is computed.
temporarily_clear_interpreter_stack = torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack
# Gets what torch.jit.trace() records into, and sets it to None while the package works.
get_tracing_state, set_tracing_state = torch._C._get_tracing_state, torch._C._set_tracing_state
# Numbers of the modes for dispatch that the program is in, and the context that turns them off.
len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack
len_torch_dispatch_stack_pre_dispatch = torch._ops._len_torch_dispatch_stack_pre_dispatch
disable_current_modes = torch.utils._python_dispatch._disable_current_modes
# Whether a tensor consists of other tensors, as quantised ones and DTensors do.
is_traceable_wrapper_subclass = torch.utils._python_dispatch.is_traceable_wrapper_subclass
# Takes the tensors out of nested lists, tuples, dictionaries and registered classes, and puts others in.
tree_flatten, tree_unflatten = torch.utils._pytree.tree_flatten, torch.utils._pytree.tree_unflatten
# The class of what torch.compile() makes of a module's forward: it compiles another function in the same way.
OptimizeContext = torch._dynamo.eval_frame.OptimizeContext
# The end of the name of a module's get_extra_state() in its state_dict().
EXTRA_STATE_KEY_SUFFIX = torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX


def leave_uncompiled(package: str) -> None:
    """Makes torch.compile() call the package's code rather than trace it."""
    torch._dynamo.trace_rules.add(package)


def storage_uses(tensor) -> int:
    """How many tensors share the tensor's memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def is_compiling() -> bool:
    """Whether torch.compile() describes the tensors of a graph now."""
    return torch._guards.TracingContext.try_get() is not None


# --- Functions that the package puts its own in the place of ---

# PyTorch's own code takes tensors here without asking their class: torch.func's transforms wrap them, and autograd
# makes first gradients.
TAKERS_OF_TENSORS = (
    (torch._functorch.eager_transforms, "_wrap_tensor_for_grad"),
    (torch._functorch.eager_transforms, "_wrap_all_tensors_to_functional"),
    (torch._functorch.vmap, "_create_batched_inputs"),
    (torch.autograd, "_make_grads"),
)
# Both backward() and torch.autograd.grad() end in this function, whose fifth argument has the inputs.
END_OF_BACKWARD = (torch.autograd, "_engine_run_backward")

# --- Attributes of PyTorch's objects ---

# Private attributes that other files use on objects, by the class that has them, with what they are for.
ATTRIBUTES = {
    torch.Tensor: {
        "_version": "counts the changes in place",
        "_base": "the tensor of which another is a view",
        "_is_view": "says whether it is one",
        "_backward_hooks": "the hooks of register_hook()",
        "_post_accumulate_grad_hooks": "those of register_post_accumulate_grad_hook()",
    },
    torch.nn.Module: {
        "_modules": "the children",
        "_parameters": "the parameters of its own",
        "_buffers": "the buffers of its own",
        "_non_persistent_buffers_set": "the buffers that are not in state_dict()",
        "_load_from_state_dict": "reads the buffers of its own, as a class may do in its own way",
        "_forward_pre_hooks": "the hooks before forward",
        "_forward_pre_hooks_with_kwargs": "which of them take keywords",
        "_compiled_call_impl": "what module.compile() has made",
        "_version": "the format of what state_dict() has of it",
    },
    torch.UntypedStorage: {"_cdata": "where the storage is, for storage_uses()"},
    torch.optim.Optimizer: {
        "_patch_step_function": "wraps step() in the hooks",
        "_opt_called": "whether step() came before its scheduler's; the scheduler makes it",
        "_optimizer_state_dict_post_hooks": "hooks after state_dict()",
        "_optimizer_load_state_dict_pre_hooks": "hooks before load_state_dict()",
        "_optimizer_load_state_dict_post_hooks": "hooks after load_state_dict()",
    },
    "DTensor": {"_local_tensor": "what this rank has of it"},
    "FSDPModule": {"_get_fsdp_state": "what fully_shard() gathers together"},
    "a function of torch.ops": {"_overloadpacket": "the function that it is a form of"},
}
