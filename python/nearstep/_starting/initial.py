"""Draws start values for empty parameters as their modules do it themselves. Called by begin.py."""

from __future__ import annotations

import contextlib
import zlib

import torch

from .._model.groups import has_list, plain_name


def _units(module, path="", owner=None):
    """Modules without lists of layers, such as layers and embeddings, and those with lists for their own parameters;
    with their names, and the model of Transformers that they belong to, or None."""
    owner = module if hasattr(module, "_init_weights") else owner
    if has_list(module):
        for name, child in module.named_children():
            yield from _units(child, f"{path}.{name}", owner)
    yield module, path, owner


def _inner_first(module, path, owner):
    owner = module if hasattr(module, "_init_weights") else owner
    for name, child in module.named_children():
        yield from _inner_first(child, f"{path}.{name}", owner)
    yield module, path, owner


def _initialise(module, path, owner, seed) -> None:
    own = [getattr(module, name, None) for name in ("reset_parameters", "_reset_parameters")]
    way = (lambda: owner._init_weights(module)) if owner is not None else next(filter(None, own), None)
    if way is not None:
        torch.manual_seed(zlib.crc32(f"{seed} {plain_name(path)}".encode()))
        way()


@contextlib.contextmanager
def _lifted(params, device):
    """Has the parameters on the device, which may draw faster than the host where they lie."""
    homes = [(p, p.data) for p in params if p.device != device]
    for p, home in homes:
        p.data = torch.empty_like(home, device=device)
    yield
    for p, home in homes:
        home.copy_(p.data)
        p.data = home


@torch.no_grad()
def draw(module: torch.nn.Module, empties: list, seed: int, device: torch.device) -> None:
    """Fills ``empties``, which have memory by now. The values depend on the seed, on the modules' names and on the kind
    of ``device``. One layer at a time is drawn there. Raises ValueError for parameters that no module initialises."""
    wanted = {id(p) for p in empties}
    drawn: set[int] = set()
    names = {id(p): name for name, p in module.named_parameters()}
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for unit, path, owner in _units(module):
            is_whole = not has_list(unit)
            params = [p for p in unit.parameters(recurse=is_whole) if id(p) in wanted - drawn]
            if not params:
                continue
            with _lifted(params, device):
                for p in params:
                    p.fill_(float("nan"))
                for inner, place, its_owner in _inner_first(unit, path, owner) if is_whole else [(unit, path, owner)]:
                    if all(id(p) in wanted for p in inner.parameters(recurse=is_whole)):  # others have values already
                        _initialise(inner, place, its_owner, seed)
                left = [names[id(p)] for p in params if p.isnan().any()]
            drawn.update(map(id, params))
            if left:
                raise ValueError(
                    f"{left[0]} has no start values, since {type(unit).__name__} does not initialise it: pass "
                    "weights=FOLDER, or make it "
                    "outside of nearstep.empty()."
                )
