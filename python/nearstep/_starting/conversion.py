"""Parameters that a Hugging Face model makes of other tensors than a file has, such as fused experts, by
Transformers' own tables, as ``from_pretrained()`` does. Used by weights.py."""

from __future__ import annotations

import copy
import sys

import torch


def _tables_for(model):
    """Transformers' two modules of conversions, if the model is one of Transformers', whose program has read it: it
    takes seconds. None with a Transformers whose models have the tensors of their files."""
    if "transformers" not in sys.modules:
        return None
    try:
        from transformers import PreTrainedModel, conversion_mapping, core_model_loading
    except ImportError:
        return None
    return (conversion_mapping, core_model_loading) if isinstance(model, PreTrainedModel) else None


class _Made:
    """The tensors that one converter makes of some tensors of the file."""

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
        tables = _tables_for(model)
        self.is_known = tables is not None
        if not self.is_known:
            return
        mapping, loading = tables[0].get_model_conversion_mapping(model), tables[1]
        renamings = [one for one in mapping if isinstance(one, loading.WeightRenaming)]
        converters = [one for one in mapping if isinstance(one, loading.WeightConverter)]
        of_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
        known = dict.fromkeys(places, True)
        for name in sorted(stored, key=loading.dot_natural_key):  # experts in their order
            place, pattern = loading.rename_source_key(name, renamings, converters, model.base_model_prefix, known)
            if place not in known and name in known:
                place, pattern = loading.rename_source_key(name, [], [], model.base_model_prefix, known)
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
            except (
                AttributeError,
                IndexError,
                KeyError,
                NotImplementedError,
                RuntimeError,
                TypeError,
                ValueError,
            ) as error:
                raise ValueError(
                    f"{name} cannot be made of the files' tensors as Transformers does it "
                    f"({str(error).splitlines()[0]}): build the model from the folder's config.json."
                ) from error
            for one, value in found.items():
                shapes[one] = tuple(value.shape)
                self.made[one] = made
        return shapes
