"""Keeps nearstep's own work apart from the program's, in whose middle it runs. Used by parameters.py."""

from __future__ import annotations

import contextlib

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes


@contextlib.contextmanager
def outside_inference():
    """Makes tensors within as training needs them, also where the program is in torch.inference_mode()."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def apart():
    """Keeps the work within apart from what the program does at this time: no watched parameter waits for it, no mode
    for functions or dispatch sees or changes it, torch.func does not transform it, torch.jit.trace() does not record
    it, and torch.inference_mode() does not mark it."""
    tracing = torch._C._get_tracing_state()
    with contextlib.ExitStack() as stack:
        stack.enter_context(outside_inference())
        stack.enter_context(torch._C.DisableTorchFunction())
        if torch._C._functorch.peek_interpreter_stack() is not None:
            stack.enter_context(temporarily_clear_interpreter_stack())
        if torch._C._len_torch_dispatch_stack() or _len_torch_dispatch_stack_pre_dispatch():
            stack.enter_context(_disable_current_modes())
        if tracing is not None:
            torch._C._set_tracing_state(None)
            stack.callback(torch._C._set_tracing_state, tracing)
        yield
