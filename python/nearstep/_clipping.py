"""Makes PyTorch's own clipping refuse nearstep's parameters, whose gradients it would not see."""

import functools

import torch

owners: dict = {}  # optimizer and index of each parameter, by its id


def _owner_of(p):
    """The optimizer that trains the parameter, or None."""
    reference, i = owners.get(id(p), (lambda: None, 0))
    optimizer = reference()
    return optimizer if optimizer is not None and optimizer._params[i] is p else None


def refuse_foreign_clipping() -> None:
    """Makes clip_grad_norm_ raise an error, because the gradients are gone when it would look at them."""
    original = torch.nn.utils.clip_grad_norm_
    if hasattr(original, "_nearstep"):
        return

    @functools.wraps(original)
    def clip_grad_norm_(parameters, max_norm, *arguments, **settings):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        owner = next(filter(None, map(_owner_of, parameters)), None)
        if owner is not None and max_norm == float("inf"):  # how transformers.Trainer asks for the norm
            return torch.tensor(owner.stats()["norm"] if owner.has_begun else 0.0)
        if owner is not None:
            raise RuntimeError(
                "torch.nn.utils.clip_grad_norm_ finds no gradients, which nearstep takes during backward: "
                "leave it out (in transformers.Trainer: max_grad_norm=0) and pass clip_norm to the optimizer."
            )
        return original(parameters, max_norm, *arguments, **settings)

    clip_grad_norm_._nearstep = True
    torch.nn.utils.clip_grad_norm_ = clip_grad_norm_
    torch.nn.utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
