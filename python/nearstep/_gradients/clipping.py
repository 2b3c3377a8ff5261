"""Answers transformers.Trainer, which asks for the gradient's norm by PyTorch's clipping with an infinite limit."""

import functools

import torch

from .._model.departed import Departed


def answer_for_norms() -> None:
    """With an infinite limit, at which nothing is clipped, ``torch.nn.utils.clip_grad_norm_`` returns the norm of the step
    before if the gradients have left. Any other limit raises, as each use of such a gradient."""
    original = torch.nn.utils.clip_grad_norm_
    if hasattr(original, "_nearstep"):
        return

    @functools.wraps(original)
    def clip(parameters, max_norm, *arguments, **settings):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        left = next((p.grad for p in parameters if isinstance(p.grad, Departed)), None)
        if left is not None and max_norm == float("inf"):
            return torch.tensor(left.last_norm())
        return original(parameters, max_norm, *arguments, **settings)

    clip._nearstep = True
    torch.nn.utils.clip_grad_norm_ = torch.nn.utils.clip_grad.clip_grad_norm_ = clip
