"""A module with a rank's pieces of the parameters in place of a program's module: the engine's blocks follow it.
Used by engines.py and optimizer.py."""

from __future__ import annotations

import torch

NAME = "Part"  # of each class of it

# The classes of modules, in the order in which they are looked for.
_KINDS = {
    kind: type(NAME, (kind,), {})
    for kind in (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential, torch.nn.Module)
}


def shadow_of(module, piece_of: dict):
    """``module``: None puts all pieces side by side; ``piece_of``: the pieces' tensors by the parameters' ids."""
    if module is None:
        flat = _KINDS[torch.nn.Module]()
        for number, piece in enumerate(piece_of.values()):
            flat.register_parameter(str(number), piece)
        return flat
    made: dict = {}

    def of(one):
        if id(one) in made:
            return made[id(one)]
        mine = made[id(one)] = next(kind for of_torch, kind in _KINDS.items() if isinstance(one, of_torch))()
        for name, child in one._modules.items():
            if child is not None:
                torch.nn.Module.add_module(mine, name, of(child))
        for name, p in one._parameters.items():
            if id(p) in piece_of:
                torch.nn.Module.register_parameter(mine, name, piece_of[id(p)])
        return mine

    return of(module)
