"""Which optimizer trains a parameter. PyTorch's own clipping refuses such parameters, whose gradients it would not see."""

import functools

import torch

owners: dict = {}  # optimizer and index of each parameter, by its id


def _owner_of(p):
    """The optimizer that trains the parameter, or None."""
    reference, i = owners.get(id(p), (lambda: None, 0))
    optimizer = reference()
    return optimizer if optimizer is not None and optimizer._handles and optimizer._params[i] is p else None


def refuse_second_optimizer(params: list, names: list) -> None:
    """Raises ValueError if another optimizer trains one of the parameters. One that has not begun gives them up."""
    for p, name in zip(params, names):
        other = _owner_of(p)
        if other is None:
            continue
        if other.has_begun:
            raise ValueError(f"{name} is trained by another nearstep optimizer: call close() on that one first.")
        other.close()


def refuse_foreign_clipping() -> None:
    """Makes PyTorch's clipping raise an error, because the gradients are gone when it would look at them."""
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        original = getattr(torch.nn.utils, name)
        if not hasattr(original, "_nearstep"):
            for owner in (torch.nn.utils, torch.nn.utils.clip_grad):
                setattr(owner, name, _refusing(original, name))


def _refusing(original, name: str):
    @functools.wraps(original)
    def clip(parameters, limit, *arguments, **settings):
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        owner = next(filter(None, map(_owner_of, parameters)), None)
        if owner is not None and name == "clip_grad_norm_" and limit == float("inf"):  # how transformers.Trainer asks for the norm
            return torch.tensor(owner.stats()["norm"] if owner.has_begun else 0.0)
        if owner is not None:
            raise RuntimeError(
                f"torch.nn.utils.{name} finds no gradients, which nearstep takes during backward: "
                "leave it out (in transformers.Trainer: max_grad_norm=0) and pass clip_norm to the optimizer."
            )
        return original(parameters, limit, *arguments, **settings)

    clip._nearstep = True
    return clip
