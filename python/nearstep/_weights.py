"""Finds a model's parameters in a folder of safetensors."""

from __future__ import annotations

import os

import torch

from . import _engine
from ._empty import is_empty

_ELEMENTS_AT_ONCE = 1 << 22
_FEW = 3  # names in a message


def _spellings(name: str, prefix: str):
    """Names that a file may have for the parameter: without PEFT's wrappers, and with or without the prefix that
    Hugging Face gives to the model within a model with a head."""
    name = name.removeprefix("base_model.model.").replace(".base_layer.", ".")
    yield name
    if prefix:
        yield name.removeprefix(prefix + ".")
        yield f"{prefix}.{name}"


def _size(shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"


class Weights:
    """The files, and the names that they have for the module's empty parameters."""

    def __init__(self, folder: str | os.PathLike, module: torch.nn.Module | None):
        """Reads the files' headers. Raises ValueError if a file is missing or damaged, or if a tensor is missing, has
        another shape, or is in a format that nearstep cannot read."""
        self.folder = os.fspath(folder)
        if module is None:
            raise ValueError("weights are found by the module's names: make the optimizer from the module, or from nearstep.groups(module).")
        self.files = _engine.Weights(self.folder)
        self._prefix = getattr(module, "base_model_prefix", "")
        self._names: dict = {}  # of tensors, by the parameter's id
        missing: dict = {}
        for name, p in module.named_parameters(remove_duplicate=False):  # a tied parameter may be stored under any of its names
            if is_empty(p) and id(p) not in self._names:
                found = self._find(name)
                if found:
                    self._names[id(p)] = found
                    missing.pop(id(p), None)
                    self._check(found, p)
                else:
                    missing.setdefault(id(p), name)
        if missing:
            names = list(missing.values())
            raise ValueError(
                f"The weights in {self.folder} lack {len(names)} of the model's parameters ({', '.join(names[:_FEW])}"
                f"{', ...' if names[_FEW:] else ''}): name the folder of this model, or add new parameters outside of nearstep.empty()."
            )
        if not self._names:
            raise ValueError(f"weights={self.folder!r} would not be used, since all parameters have values: build the model in nearstep.empty().")

    def _find(self, name: str) -> str | None:
        return next((one for one in _spellings(name, self._prefix) if self.files.describe(one) is not None), None)

    def _check(self, name: str, p) -> None:
        shape, dtype = self.files.describe(name)
        if tuple(shape) != tuple(p.shape):
            raise ValueError(f"{name} in {self.folder} is {_size(shape)}, the model's is {_size(p.shape)}: build the model from the folder's config.json.")
        if not dtype:
            raise ValueError(f"{name} in {self.folder} is in a format that nearstep cannot read: save it in F32, F16 or BF16.")

    def name_of(self, p) -> str:
        """The tensor's name; empty if the parameter keeps its own values."""
        return self._names.get(id(p), "")

    @torch.no_grad()
    def read(self, name: str, target) -> None:
        """Fills ``target``, on any device, a few MB at a time."""
        flat = target.view(-1)
        part = torch.empty(min(_ELEMENTS_AT_ONCE, flat.numel()), dtype=torch.float32, device="cpu")
        for first in range(0, flat.numel(), _ELEMENTS_AT_ONCE):
            count = min(_ELEMENTS_AT_ONCE, flat.numel() - first)
            self.files.read(name, first, part.data_ptr(), count)
            flat[first : first + count].copy_(part[:count])

    def read_buffers(self, module: torch.nn.Module) -> None:
        """Reads the buffers that are stored as floats, such as running means; others stay as they were computed."""
        for path, owner in module.named_modules():
            for name, buffer in owner.named_buffers(recurse=False):
                found = self._find(f"{path}.{name}" if path else name)
                if found and name not in owner._non_persistent_buffers_set:
                    shape, dtype = self.files.describe(found)
                    if dtype and tuple(shape) == tuple(buffer.shape) and buffer.is_floating_point():
                        self.read(found, buffer)
