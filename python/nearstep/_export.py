"""Writes trained weights for Hugging Face's from_pretrained()."""
from __future__ import annotations

import copy
import os

from . import _engine


def refuse_what_is_not_held(module, held) -> None:
    """Raises ValueError if the module's state_dict has tensors that are not in ``held``, the optimizer's parameters."""
    if module is None:
        raise ValueError("The optimizer does not know the module: make it from the module, or from nearstep.groups(module), to export it.")
    known = {id(p) for p in held}
    other = [name for name, value in module.state_dict(keep_vars=True).items() if id(value) not in known]
    if other:
        raise ValueError(f"The optimizer does not hold {', '.join(other[:3])}{', ...' if other[3:] else ''}: save module.state_dict() in place of an export.")


def config_of(module) -> str:
    """The content of config.json; empty if the module has none."""
    config = getattr(module, "config", None)
    if not hasattr(config, "to_json_string"):
        return ""
    config = copy.deepcopy(config)
    config.architectures = [type(module).__name__]
    return config.to_json_string()


def write(checkpoint: str, folder: str | os.PathLike, dtype: str, module) -> None:
    """Writes files of at most 5 GB. One tile of the checkpoint is in memory at a time."""
    _engine.export_safetensors(checkpoint, os.fspath(folder), dtype, 5_000_000_000, config_of(module))
