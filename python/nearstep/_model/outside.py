"""Keeps nearstep's own work out of the program's, in whose middle it runs. Used by parameters.py."""

from __future__ import annotations

import contextlib

import torch

from .._torch_private import (
    DisableTorchFunction,
    disable_current_modes,
    get_tracing_state,
    len_torch_dispatch_stack,
    len_torch_dispatch_stack_pre_dispatch,
    peek_interpreter_stack,
    set_tracing_state,
    temporarily_clear_interpreter_stack,
)


@contextlib.contextmanager
def outside_inference():
    """Makes tensors within as training needs them, also where the program is in torch.inference_mode()."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def outside_program():
    """Keeps the work in this context out of what the program does: no watched parameter waits for it, no mode for
    functions or dispatch sees or changes it, torch.func does not transform it, torch.jit.trace() does not record it,
    and torch.inference_mode() does not mark it."""
    tracing = get_tracing_state()
    with contextlib.ExitStack() as stack:
        stack.enter_context(outside_inference())
        stack.enter_context(DisableTorchFunction())
        if peek_interpreter_stack() is not None:
            stack.enter_context(temporarily_clear_interpreter_stack())
        if len_torch_dispatch_stack() or len_torch_dispatch_stack_pre_dispatch():
            stack.enter_context(disable_current_modes())
        if tracing is not None:
            set_tracing_state(None)
            stack.callback(set_tracing_state, tracing)
        yield
