"""Layers that a stream has left in host memory, where the program may still call them for a GPU. Used by
streaming.py and work.py."""

from __future__ import annotations

import itertools

import torch


def refuse_on_host(module: torch.nn.Module, arguments: tuple, settings: dict) -> None:
    """A hook before the layer's forward. Raises RuntimeError if the arguments are elsewhere than the parameters."""
    given = [one for one in itertools.chain(arguments, settings.values()) if isinstance(one, torch.Tensor)]
    if any(one.device.type != "cpu" for one in given) and any(p.device.type == "cpu" for p in module.parameters()):
        raise RuntimeError(
            f"A layer ({type(module).__name__}) is in host memory, where stream= had it, and its optimizer is closed "
            "or gone: move the model to "
            "the GPU, as by model.cuda(), if there is room for it, or make another optimizer with stream=."
        )


def mark(module: torch.nn.Module) -> None:
    if not isinstance(module, torch.jit.ScriptModule):
        module.register_forward_pre_hook(refuse_on_host, prepend=True, with_kwargs=True)


def unmark(module: torch.nn.Module) -> None:
    """Another stream has the layer."""
    for key in [key for key, hook in module._forward_pre_hooks.items() if hook is refuse_on_host]:
        del module._forward_pre_hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)
