"""Parameters that a Hugging Face model makes of other tensors than a file has, such as fused experts, by Transformers' own
tables, as ``from_pretrained()`` does."""

from __future__ import annotations

import copy

import torch

try:
    from transformers import PreTrainedModel
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key
except ImportError:  # without Transformers, or one whose models have the tensors of their files
    PreTrainedModel = None


class _Made:
    """What one converter makes of some tensors of the file."""

    def __init__(self, model, converter, name: str):
        self._model, self._converter, self._name = model, converter, name
        self._sources: list = []  # a pattern of the converter's, and the stored tensor's name

    def add(self, pattern: str, stored: str) -> None:
        self._sources.append((pattern, stored))

    def make(self, load) -> dict:
        """The parameters by their names. ``load(stored)``: one of the file's tensors."""
        converter = copy.deepcopy(self._converter)
        for pattern, stored in self._sources:
            converter.add_tensor(self._name, stored, pattern, lambda stored=stored: load(stored))
        made = converter.convert(self._name, model=self._model, config=self._model.config)
        return {name: one[0] if isinstance(one, list) else one for name, one in made.items()}


class Conversions:
    """How the tensors of a file become those of a model."""

    def __init__(self, model, places: set, stored: list):
        """``places``: names of the model's parameters and buffers; ``stored``: of the file's tensors."""
        self.renamed: dict = {}  # stored names of tensors that are the model's as they are, by its names
        self.made: dict = {}  # what makes a parameter, by its name
        self.unused: list = []  # stored names without a place in the model
        self.is_known = PreTrainedModel is not None and isinstance(model, PreTrainedModel)
        if not self.is_known:
            return
        mapping = get_model_conversion_mapping(model)
        renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
        converters = [one for one in mapping if isinstance(one, WeightConverter)]
        of_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
        known = dict.fromkeys(places, True)
        for name in sorted(stored, key=dot_natural_key):  # experts in their order
            place, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, known)
            if place not in known and name in known:
                place, pattern = rename_source_key(name, [], [], model.base_model_prefix, known)
            if place not in known:
                self.unused.append(name)
            elif pattern is None:
                self.renamed.setdefault(place, name)
            else:
                if place not in self.made:
                    self.made[place] = _Made(model, of_pattern[pattern], place)
                self.made[place].add(pattern, name)

    def check(self, shape_of) -> dict:
        """Makes everything without values. Returns the shapes by the parameters' names. ``shape_of(stored)``. Raises
        ValueError if the file's tensors do not fit together."""
        shapes = {}
        for name, made in list(self.made.items()):
            try:
                found = made.make(lambda stored: torch.empty(shape_of(stored), device="meta"))
            except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
                raise ValueError(f"{name} cannot be made of the files' tensors as Transformers does it ({str(error).splitlines()[0]}): build the model from the folder's config.json.") from error
            for one, value in found.items():
                shapes[one] = tuple(value.shape)
                self.made[one] = made
        return shapes
