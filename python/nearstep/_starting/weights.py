"""Finds a model's parameters in a folder of safetensors. Called by _optimizer.py."""

from __future__ import annotations

import math
import os
import re

import torch

from .. import _engine
from .conversion import Conversions
from .names import file_name
from .._model.empty import is_empty
from .._model.groups import plain_name

_ELEMENTS_AT_ONCE = 1 << 22
_FEW = 3  # names in a message
_COMPUTED = (r"rotary_emb\.inv_freq", r"(^|\.)position_ids$")  # in older files; models compute them


def _name_in_files(name: str) -> str:
    """Without torch.compile's and PEFT's wrappers."""
    name = plain_name(name).removeprefix("base_model.model.")
    return ".".join(part for part in name.split(".") if part != "base_layer")


def _spellings(name: str, prefix: str):
    """Names that a file may have for the parameter: with or without the prefix that Hugging Face gives to the model
    within a model with a head."""
    yield name
    if prefix:
        yield name.removeprefix(prefix + ".")
        yield f"{prefix}.{name}"


def _hugging_face_model(module):
    """The model that files are written of, within torch.compile's and PEFT's wrappers."""
    while True:
        inner = getattr(module, "_modules", {})
        if "_orig_mod" in inner:
            module = inner["_orig_mod"]
        elif "base_model" in inner and hasattr(module, "peft_config"):
            module = inner["base_model"].model
        else:
            return module


def _size(shape) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def _few(names: list) -> str:
    return f"{', '.join(names[:_FEW])}{', ...' if names[_FEW:] else ''}"


class Weights:
    """The files, and the names that they have for the module's empty parameters."""

    def __init__(self, folder: str | os.PathLike, module: torch.nn.Module | None):
        """Reads the files' headers. Raises ValueError if a file is missing or damaged, or if a tensor is missing, has
        another shape, or is in a format that nearstep cannot read."""
        self.folder = file_name("weights", folder)
        if module is None:
            raise ValueError(
                "weights are found by the module's names: make the optimizer from the module, or from "
                "nearstep.groups(module)."
            )
        self.files = _engine.Weights(self.folder)
        self._prefix = getattr(module, "base_model_prefix", "")
        tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
        places = {_name_in_files(name) for name, _ in tensors}
        self._conversions = Conversions(_hugging_face_model(module), places, self.files.names())
        shapes = self._conversions.check(lambda name: self.files.describe(name)[0])
        self._names: dict = {}  # of tensors, by the parameter's id
        self._made: dict = {}  # names of parameters that are made of several tensors, by the parameter's id
        self._latest: tuple = (None, {})  # what was made last, and what was not taken of it
        missing: dict = {}
        twice: list = []  # another tensor, for a parameter that is tied here
        for name, p in module.named_parameters(
            remove_duplicate=False
        ):  # a tied parameter may be stored under any of its names
            plain = _name_in_files(name)
            found = self._find(plain)
            if id(p) in self._names:
                if found and not self._are_equal(found, self._names[id(p)]):
                    twice.append(found)
                continue
            if not is_empty(p) or id(p) in self._made:
                continue
            if found:
                self._names[id(p)] = found
                self._check(found, p)
            elif plain in shapes:
                self._made[id(p)] = plain
                self._check_shape(plain, shapes[plain], p)
            else:
                missing.setdefault(id(p), name)
                continue
            missing.pop(id(p), None)
        if missing:
            names = list(missing.values())
            raise ValueError(
                f"The weights in {self.folder} lack {len(names)} of the model's parameters ({_few(names)}): "
                "name the folder of this model, or add new parameters outside of nearstep.empty()."
            )
        if not self._names and not self._made:
            raise ValueError(
                f"weights={self.folder!r} would not be used, since all parameters have values: build the model in "
                "nearstep.empty()."
            )
        self._unused = (
            self._without_place(
                places, getattr(_hugging_face_model(module), "_keys_to_ignore_on_load_unexpected", None)
            )
            + twice
        )

    def _find(self, name: str) -> str | None:
        """The stored tensor that is the parameter or buffer as it is."""
        if name in self._conversions.made:
            return None
        found = self._conversions.renamed.get(name)
        return found or next(
            (one for one in _spellings(name, self._prefix) if self.files.describe(one) is not None), None
        )

    def _without_place(self, places: set, ignored) -> list:
        if self._conversions.is_known:
            unused = self._conversions.unused
        else:
            used = {spelling for name in places for spelling in _spellings(name, self._prefix)}
            unused = [name for name in self.files.names() if name not in used]
        patterns = "|".join(f"({one})" for one in (*(ignored or ()), *_COMPUTED))
        return [name for name in unused if not re.search(patterns, name)]

    def _are_equal(self, one: str, other: str) -> bool:
        """Whether two of the files' tensors have the same values."""
        if self.files.describe(one) != self.files.describe(other):
            return False
        parts = torch.empty(2, _ELEMENTS_AT_ONCE)
        elements = math.prod(self.files.describe(one)[0])
        for first in range(0, elements, _ELEMENTS_AT_ONCE):
            count = min(_ELEMENTS_AT_ONCE, elements - first)
            for name, part in zip((one, other), parts):
                self.files.read(name, first, part.data_ptr(), count)
            if not torch.equal(parts[0, :count], parts[1, :count]):
                return False
        return True

    @property
    def line(self) -> str:
        """Tells the user of tensors that are not used; empty if there are none."""
        if not self._unused:
            return ""
        return (
            f"{len(self._unused)} tensors in {self.folder} are not used, since the model has no place for them: "
            f"{_few(sorted(self._unused))}"
        )

    def _check(self, name: str, p) -> None:
        shape, dtype = self.files.describe(name)
        self._check_shape(name, shape, p)
        self._check_format(name, dtype)

    def _check_format(self, name: str, dtype: str) -> None:
        if not dtype:
            raise ValueError(
                f"{name} in {self.folder} is in a format that nearstep cannot read: save it in F32, F16 or BF16."
            )

    def _check_shape(self, name: str, shape, p) -> None:
        if tuple(shape) != tuple(p.shape):
            raise ValueError(
                f"{name} in {self.folder} is {_size(shape)}, the model's is {_size(p.shape)}: build the model from "
                "the folder's config.json."
            )

    def name_of(self, p) -> str:
        """The tensor's name; empty if the parameter keeps its own values or is made of several tensors."""
        return self._names.get(id(p), "")

    def is_made(self, p) -> bool:
        """Whether the parameter is made of several tensors, by make()."""
        return id(p) in self._made

    @torch.no_grad()
    def fill(self, p, target) -> None:
        """Fills ``target``, on any device, with the parameter's values."""
        if id(p) in self._made:
            target.copy_(self._make(self._made[id(p)], target.dtype))
        else:
            self.read(self._names[id(p)], target)

    def _make(self, name: str, dtype):
        made, rest = self._latest
        if made is not self._conversions.made[name] or name not in rest:
            made = self._conversions.made[name]
            self._latest = (None, {})  # frees what is left of it
            rest = made.make(lambda stored: self._load(stored, dtype))
        value = rest.pop(name)
        self._latest = (made, rest)
        return value

    def _load(self, name: str, dtype):
        shape, stored = self.files.describe(name)
        self._check_format(name, stored)
        tensor = torch.empty(shape, dtype=dtype, device="cpu")
        self.read(name, tensor)
        return tensor

    @torch.no_grad()
    def read(self, name: str, target) -> None:
        """Fills ``target``, on any device, with a tensor of the files, a few MB at a time."""
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
                found = self._find(_name_in_files(f"{path}.{name}" if path else name))
                if found and name not in owner._non_persistent_buffers_set:
                    shape, dtype = self.files.describe(found)
                    if dtype and tuple(shape) == tuple(buffer.shape) and buffer.is_floating_point():
                        self.read(found, buffer)
