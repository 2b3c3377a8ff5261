"""Answers PyTorch's clipping by norm, which Transformers, Accelerate and Lightning call. Used by _optimizer.py."""

import functools

import torch

from .._model.departed import Departed


def answer_clipping() -> None:
    """``torch.nn.utils.clip_grad_norm_`` tells the optimizer to clip if gradients are with it, and returns the norm of
    the last finished step. Trainer asks so for the norm alone, with an infinite limit."""
    original = torch.nn.utils.clip_grad_norm_
    if hasattr(original, "_nearstep"):
        return

    @functools.wraps(original)
    def clip(parameters, max_norm, norm_type=2.0, *arguments, **settings):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        left = next((p.grad for p in parameters if isinstance(p.grad, Departed)), None)
        if left is not None:
            return torch.tensor(left.clip(parameters, float(max_norm), float(norm_type)))
        return original(parameters, max_norm, norm_type, *arguments, **settings)

    clip._nearstep = True
    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip
