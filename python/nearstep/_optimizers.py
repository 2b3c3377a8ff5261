"""The five optimizers."""

import torch

from ._optimizer import Optimizer


class AdamW(Optimizer):
    """Adam with decoupled weight decay, as ``torch.optim.AdamW``. Keyword arguments: see ``Optimizer``."""

    _name, _like, _moments = "adamw", torch.optim.AdamW, ("exp_avg", "exp_avg_sq")

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, **settings):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **settings)


class Adam(Optimizer):
    """``torch.optim.Adam``: weight decay is added to the gradient. Keyword arguments: see ``Optimizer``."""

    _name, _like, _moments = "adam", torch.optim.Adam, ("exp_avg", "exp_avg_sq")

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **settings):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, **settings)


class SGD(Optimizer):
    """``torch.optim.SGD`` with momentum, undamped. Keyword arguments: see ``Optimizer``."""

    _name, _like, _moments = "sgd", torch.optim.SGD, ("momentum_buffer",)

    def __init__(self, params, lr=1e-3, momentum=0.0, weight_decay=0.0, **settings):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}, **settings)


class Adagrad(Optimizer):
    """``torch.optim.Adagrad``. Keyword arguments: see ``Optimizer``."""

    _name, _like, _moments = "adagrad", torch.optim.Adagrad, (None, "sum")

    def __init__(self, params, lr=1e-2, eps=1e-10, weight_decay=0.0, **settings):
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay}, **settings)


class Lion(Optimizer):
    """Chen et al., "Symbolic discovery of optimization algorithms" (2023). Keyword arguments: see ``Optimizer``."""

    _name, _like, _moments = "lion", None, ("exp_avg",)

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, **settings):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, **settings)
