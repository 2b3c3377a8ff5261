"""The optimizers that programs make. Exported by __init__.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ._optimizer import Optimizer
from ._starting.keywords import Number, Params, Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Adagrad", "Adam", "AdamW", "Lion", "SGD"]


class AdamW(Optimizer):
    """Adam with decoupled weight decay, as ``torch.optim.AdamW``."""

    _name, _like, _moments = "adamw", torch.optim.AdamW, ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **settings: Unpack[Settings],
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **settings)


class Adam(Optimizer):
    """``torch.optim.Adam``: weight decay is added to the gradient."""

    _name, _like, _moments = "adam", torch.optim.Adam, ("exp_avg", "exp_avg_sq")

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **settings: Unpack[Settings],
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **settings)


class SGD(Optimizer):
    """``torch.optim.SGD`` with momentum, undamped."""

    _name, _like, _moments = "sgd", torch.optim.SGD, ("momentum_buffer",)

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        **settings: Unpack[Settings],
    ):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}, **settings)


class Adagrad(Optimizer):
    """``torch.optim.Adagrad``."""

    _name, _like, _moments = "adagrad", torch.optim.Adagrad, (None, "sum")

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        **settings: Unpack[Settings],
    ):
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay}, **settings)


class Lion(Optimizer):
    """Chen et al., "Symbolic discovery of optimization algorithms" (2023)."""

    _name, _like, _moments = "lion", None, ("exp_avg",)

    def __init__(
        self,
        params: Params,
        lr: Number = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **settings: Unpack[Settings],
    ):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, **settings)
