"""Writes trained weights as safetensors, for Hugging Face's from_pretrained(), or as HDF5. Called by _optimizer.py."""

from __future__ import annotations

import copy
import os

import torch

from .._torch_private import is_traceable_wrapper_subclass
from .. import _engine
from .._model.groups import DTYPES, plain_module, plain_name
from .._starting.names import file_name

# The names of formats in safetensors. Older versions of PyTorch lack some formats.
_FORMATS = {
    getattr(torch, name): word
    for name, word in (
        ("float64", "F64"),
        ("float32", "F32"),
        ("float16", "F16"),
        ("bfloat16", "BF16"),
        ("float8_e4m3fn", "F8_E4M3"),
        ("float8_e5m2", "F8_E5M2"),
        ("complex64", "C64"),
        ("int64", "I64"),
        ("int32", "I32"),
        ("int16", "I16"),
        ("int8", "I8"),
        ("uint64", "U64"),
        ("uint32", "U32"),
        ("uint16", "U16"),
        ("uint8", "U8"),
        ("bool", "BOOL"),
    )
    if hasattr(torch, name)
}


def others_of(module, held: list, names: list) -> dict:
    """The tensors of the module's state_dict that the optimizer does not hold: frozen parameters and buffers. ``held``:
    the optimizer's parameters, and their ``names``. A tensor with several names has its first one. Raises ValueError
    for what safetensors cannot hold."""
    if module is None:
        raise ValueError(
            "The optimizer does not know the module: make it from the module, or from nearstep.groups(module), to "
            "export it."
        )
    seen = set(map(id, held))
    others = {}
    for name, value in ((plain_name(name), value) for name, value in module.state_dict(keep_vars=True).items()):
        if id(value) in seen or name in names:
            continue
        seen.add(id(value))
        is_plain = isinstance(value, torch.Tensor) and not is_traceable_wrapper_subclass(value)
        if not is_plain or value.layout != torch.strided or value.is_meta or value.dtype not in _FORMATS:
            what = (
                f"a tensor of {value.dtype} as {type(value).__name__}"
                if isinstance(value, torch.Tensor)
                else f"a {type(value).__name__}"
            )
            raise ValueError(
                f"{name} is {what}, which safetensors cannot hold: save module.state_dict() in place of an export."
            )
        others[name] = value
    return others


def ties_of(module, held: list, names: list) -> dict:
    """The other names of each tensor that the module's state_dict has under several."""
    first = dict(zip(map(id, held), names))
    ties = {}
    for name, value in ((plain_name(name), value) for name, value in module.state_dict(keep_vars=True).items()):
        if first.setdefault(id(value), name) != name:
            ties.setdefault(first[id(value)], []).append(name)
    return ties


def _for_engine(name: str, value: torch.Tensor, dtype: torch.dtype) -> tuple:
    """Name, format, shape, bytes, and what reads the bytes; numbers that are not whole are rounded to ``dtype``."""
    written = dtype if value.is_floating_point() else value.dtype

    def read() -> torch.Tensor:
        return value.detach().to("cpu", written).contiguous().reshape(-1).view(torch.uint8)

    return name, _FORMATS[written], list(value.shape), value.numel() * written.itemsize, read


def _json_of(config) -> str:
    return config.to_json_string() if hasattr(config, "to_json_string") else ""


def config_of(module) -> str:
    """The content of config.json; empty if the module has none."""
    config = getattr(module, "config", None)
    if not hasattr(config, "to_json_string"):
        return ""
    config = copy.deepcopy(config)
    config.architectures = [type(plain_module(module)).__name__]
    return _json_of(config)


def write(checkpoint: str, folder: str | os.PathLike, dtype: str, module, others: dict, ties: dict) -> None:
    """Writes a folder with files of at most 5 GB, or, where the name ends in ``.h5``, one HDF5 file with ``ties``. A
    few tiles of the checkpoint, or one other tensor, are in memory at a time."""
    formats = {word: of for of, word in DTYPES.items()}
    if dtype not in formats:
        raise ValueError(f"Exports are fp32, bf16 or fp16, not {dtype}.")
    tensors = [_for_engine(name, value, formats[dtype]) for name, value in others.items()]
    path = file_name("folder", folder)
    is_hdf5 = path.endswith(".h5")
    if is_hdf5 and os.path.lexists(path):
        raise ValueError(f"{path} exists: name a new file, or remove it.")
    _engine.export_weights(
        checkpoint,
        path,
        dtype,
        None if is_hdf5 else 5_000_000_000,
        config_of(module),
        _json_of(getattr(module, "generation_config", None)),
        tensors,
        ties,
    )
