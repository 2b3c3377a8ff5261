"""Converts the optimizers' arguments to settings of the engine. Called by _optimizer.py and _serve.py."""

from __future__ import annotations

import functools
import inspect
import json
import math
import numbers
import os
from collections.abc import Mapping

import torch

from .names import expect_text, whole_path


def _toml(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Real):  # also NumPy's
        return repr(int(value) if isinstance(value, numbers.Integral) else float(value))
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return json.dumps(expect_text(value), ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML knows no surrogates
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)


def flattened(config: Mapping, prefix: str = "") -> dict:
    if not isinstance(config, Mapping):
        raise ValueError(f'config is {config!r}: give a dictionary, such as {{"csd.slots": 6}}.')
    flat = {}
    for key, value in config.items():
        if not isinstance(key, str):
            raise ValueError(f'config has the key {key!r}: keys are texts, such as "csd.slots".')
        flat.update(flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return flat


# Advice in place of a key that the engine does not use under PyTorch, by section or key.
_INSTEAD = {
    "data": "your own loop reads the data",
    "hosts": "launch/mpirun and launch/slurm read it from a site",
    "model": "the module says it",
    "plan": "nearstep plan uses it",
    "train": "your own loop does this",
    "train.optimizer": "choose a class, such as nearstep.AdamW",
    "train.learning_rate": "pass lr=...",
    "train.beta1": "pass betas=(...)",
    "train.beta2": "pass betas=(...)",
    "train.epsilon": "pass eps=...",
    "train.weight_decay": "pass weight_decay=...",
    "train.decay": "pass nearstep.groups(module, weight_decay=...)",
    "train.clip_norm": "pass clip_norm=...",
    "checkpoint.every": "call opt.save()",
    "csd.storage_ranks": "those ranks call nearstep.serve()",
}
_USED = ("train.seed", "train.clipping", "train.loss_scale", "train.scale_growth_steps")


def _check_keys(config: dict) -> None:
    """Raises ValueError for a key that would be ignored."""
    for key in config:
        instead = _INSTEAD.get(key) or _INSTEAD.get(key.partition(".")[0])
        if instead and key not in _USED:
            raise ValueError(f"config has {key!r}, which is not used for a PyTorch model: leave it out, {instead}.")


# From this many parameters on, devices work on larger subgroups, so that threads hand over less often.
_LARGE_ELEMENTS, _LARGE_SUBGROUP_TILES = 1 << 28, 64


def as_text(value) -> str:
    """Returns a text that is the same for equal numbers of any type."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(as_text, value))
    is_number = hasattr(value, "__float__") and not isinstance(value, bool)
    return repr(float(value)).removesuffix(".0") if is_number else str(value)


def values_of_all(optimizer: str, given: dict, groups: list, defaults: dict) -> list:
    """The names and values that all ranks must have alike, without the engine's settings."""
    of_groups = {
        f"{name} of parameter group {number}": group.get(name, default)
        for number, group in enumerate(groups)
        for name, default in defaults.items()
    }
    return [(name, as_text(value)) for name, value in {"the optimizer": optimizer, **given, **of_groups}.items()]


def check_memory(name: str, gb) -> None:
    """Raises ValueError for what is no amount of memory; None: not given."""
    if gb is not None and (not _is_in(0, gb, math.inf) or gb == 0):
        raise ValueError(f"{name}={gb!r} is no amount of memory: give the GB that this process may take.")


def check_values(groups: list, clip_norm, accumulation, gpu_memory_gb, **switches) -> None:
    """Raises ValueError for a value that no optimizer takes. ``switches``: arguments that are True or False."""
    check_memory("gpu_memory_gb", gpu_memory_gb)
    if clip_norm is not None and not _is_in(0, clip_norm, math.inf):
        raise ValueError(f"clip_norm is {clip_norm!r}: give a norm above 0, or None for no clipping.")
    if accumulation is not None and (not hasattr(accumulation, "__index__") or accumulation < 1):
        raise ValueError(
            f"accumulation is {accumulation!r}: give the number of backward passes per step, 1 or more, or None."
        )
    for name, value in switches.items():
        if value not in (True, False):
            raise ValueError(f"{name} is {value!r}: give True or False.")
    for group in groups:
        for name in ("lr", "eps", "weight_decay", "momentum"):
            if not _is_in(0, group.get(name, 0), math.inf):
                raise ValueError(f"{name} is {group[name]!r}: give a number of at least 0.")
        betas = group.get("betas", (0, 0))
        if not isinstance(betas, (list, tuple)) or len(betas) != 2 or not all(_is_in(0, beta, 1) for beta in betas):
            raise ValueError(f"betas is {betas!r}: give two numbers of at least 0 and below 1.")


def check_accumulation_dtype(dtype, layout) -> None:
    """Raises ValueError for a format in which gradients are not summed."""
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"accumulation_dtype is {dtype!r}: give torch.float32 or torch.bfloat16.")
    others = {p.dtype for p in layout.params} - {dtype}
    if dtype == torch.bfloat16 and others:
        raise ValueError(
            f"accumulation_dtype=torch.bfloat16 would round gradients of parameters in {others.pop()} before they are "
            "summed: leave it out, or convert the model to bfloat16."
        )


def _is_in(least, value, below) -> bool:
    return not isinstance(value, str) and hasattr(value, "__float__") and least <= float(value) < below


_FOLDERS = {"csd.path": "path", "csd.log": "log", "checkpoint.path": "checkpoint.path"}
_ALIKE = ("foreach", "fused", "capturable")  # other ways to the same numbers


@functools.cache
def _lacking(cls) -> tuple:
    """Options of PyTorch's optimizer of that name that nearstep's does not have, and their defaults."""
    found = {} if cls._like is None else inspect.signature(cls._like).parameters
    own = inspect.signature(cls).parameters
    return tuple((name, one.default) for name, one in found.items() if name not in own and name not in _ALIKE)


def check_groups(cls, groups: list) -> None:
    """Raises TypeError for an option of PyTorch's optimizer of that name that nearstep's does not have."""
    for name, default in _lacking(cls):
        for group in groups:
            if name in group and group[name] != default:
                raise TypeError(
                    f"The option {name}={group[name]} of a parameter group is torch.optim.{cls._like.__name__}'s, "
                    "and nearstep does not have it: leave it out."
                )


_ARGUMENTS = {
    "csd.path": "path",
    "csd.log": "log",
    "csd.per_rank": "devices",
    "csd.state": "state",
    "csd.durability": "durability",
    "compress.codec": "codec",
    "train.clipping": "clipping",
    "train.seed": "seed",
}


def _paths_of(argument: str, value) -> list | None:
    paths = [value] if isinstance(value, (str, os.PathLike)) else value
    if paths is not None and (
        not isinstance(paths, (list, tuple)) or not paths or not all(os.fspath(one) for one in paths)
    ):
        raise ValueError(f"{argument} is {value!r}: give a folder, or a list with one folder per drive.")
    return None if paths is None else [os.fspath(one) for one in paths]


def settings_of(arguments: dict, elements: int) -> list[str]:
    """The optimizer's arguments as "key=value", as for nearstep train's ``--set``. ``elements``: all parameters."""
    devices = arguments.get("devices")
    known = {
        "csd.path": _paths_of("path", arguments.get("path")),
        "csd.log": _paths_of("log", arguments.get("log")),
        "csd.per_rank": devices if devices is None or isinstance(devices, (list, tuple)) else [devices],
        "csd.state": arguments.get("state"),
        "csd.durability": arguments.get("durability"),
        "compress.codec": arguments.get("codec"),
        "train.clipping": arguments.get("clipping"),
        "train.seed": arguments.get("seed"),
    }
    flat = {key: value for key, value in known.items() if value is not None}
    given = flattened(arguments.get("config") or {})
    _check_keys(given)
    for key, argument in _ARGUMENTS.items():
        if key in flat and key in given and given[key] != flat[key] and (key, flat[key]) != ("train.clipping", "exact"):
            raise ValueError(f"{argument} is {flat[key]!r}, and config has {given[key]!r} for it: give it once.")
    flat.update(given)
    flat.setdefault("csd.path", ["runs/state"])
    for key in _FOLDERS.keys() & flat.keys():  # the program may change its folder
        given_as = _FOLDERS[key] if known.get(key) is not None else key
        flat[key] = (
            [whole_path(given_as, one) for one in flat[key]]
            if isinstance(flat[key], (list, tuple))
            else whole_path(given_as, flat[key])
        )
    if flat.get("compress.codec", "dense") not in ("dense", "auto"):
        flat.setdefault("mode", "su+o+c")
    if elements >= _LARGE_ELEMENTS:
        flat.setdefault("csd.subgroup_tiles", _LARGE_SUBGROUP_TILES)
    return [f"{key}={_toml(value)}" for key, value in flat.items()]
