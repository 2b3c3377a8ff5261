"""Makes ``opt.state_dict()`` of a state that several ranks hold, and takes moments that a program loads. Used by
optimizer.py.

Where all parameters are DTensors it has real moments, as torch.distributed.checkpoint wants them. Plain parameters, of
whose moments a rank has a part, leave it at where the state is."""

from __future__ import annotations

import itertools
import json

import torch

from .. import _engine
from .boxes import dense, flat_like
from .carry import Carried
from .parts import DTensor, is_sharded, local
from .world import of_all_ranks

KEY = "nearstep"  # in the first parameter group


def has_moments(optimizer) -> bool:
    """Whether every rank has the moments of what it has of the parameters."""
    return all(is_sharded(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad)


def _names(optimizer) -> list:
    """Pairs of a moment's place in the engine's state and PyTorch's name of it."""
    return [(place, name) for place, name in enumerate(optimizer._moments) if name]


def _as_parameter(p, values):
    """A local tensor as a DTensor that is divided like the parameter."""
    return DTensor.from_local(values, p.device_mesh, p.placements, run_check=False, shape=p.shape, stride=p.stride())


def _moments(optimizer) -> dict:
    """Returns the moments by the parameters' ids. Before the first use they are zeros, for a checkpoint to be loaded
    into."""
    found = {}
    flats = [
        {name: torch.zeros(local(p).numel(), device=local(p).device) for _, name in _names(optimizer)}
        for p in optimizer._params
    ]
    if optimizer.has_begun:
        parts, own = optimizer._parts, optimizer._own
        if own._params:
            own._write_back()
        for i, piece in enumerate(parts.pieces):
            arrays = own._conductor.read_state(i)
            for place, name in _names(optimizer):
                flats[piece.number][name][piece.begin : piece.begin + piece.place.count] = arrays[1 + place]
        for bucket in parts.buckets:
            for _, name in _names(optimizer) if bucket.count > 1 else ():
                bucket.gather([flats[number][name] for number in bucket.numbers])
    for p, flat in zip(optimizer._params, flats):
        here = local(p)
        found[id(p)] = {"step": torch.tensor(float(optimizer._done))}
        for name, values in flat.items():
            order = dense(here, name)[1]
            size = [here.shape[i] for i in order]
            back = [order.index(i) for i in range(len(order))]
            found[id(p)][name] = _as_parameter(
                p, values.view(size).permute(back).to(here.device) if back else values.view(()).to(here.device)
            )
    return found


def _settings_of_torch(optimizer) -> dict:
    """Returns the settings of a group of PyTorch's optimizer of that name, with their defaults: a checkpoint of that
    one has them all."""
    return {} if optimizer._like is None else optimizer._like([torch.nn.Parameter(torch.empty(0))]).defaults


def state_dict(optimizer) -> dict:
    """See ``torch.optim.Optimizer.state_dict()``. Collective where real moments are in it."""
    params = list(itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups))
    held = set(map(id, optimizer._params))
    numbers = iter(range(len(params)))
    groups = [
        {
            **{key: value for key, value in group.items() if key != "params"},
            "params": [next(numbers) for _ in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    if has_moments(optimizer):
        moments, of_torch = _moments(optimizer), _settings_of_torch(optimizer)
        groups = [{**of_torch, **group} for group in groups]
        return {"state": {i: moments[id(p)] for i, p in enumerate(params) if id(p) in held}, "param_groups": groups}
    groups[0][KEY] = json.dumps(
        {"step": optimizer._done, "checkpoint": optimizer._saved[1] if optimizer._saved[0] == optimizer._done else ""}
    )
    return {
        "state": {i: {"step": torch.tensor(float(optimizer._done))} for i, p in enumerate(params) if id(p) in held},
        "param_groups": groups,
    }


def load(optimizer, given: dict) -> None:
    """Takes the groups' settings, and goes on from the moments, or to where the state was."""
    saved = list(itertools.chain.from_iterable(group["params"] for group in given["param_groups"]))
    params = list(itertools.chain.from_iterable(group["params"] for group in optimizer.param_groups))
    if [len(group["params"]) for group in given["param_groups"]] != [
        len(group["params"]) for group in optimizer.param_groups
    ]:
        raise ValueError(
            "This state has other parameter groups than the optimizer: make the groups as those of the "
            "run that saved it."
        )
    of_torch = _settings_of_torch(optimizer)
    place = next((group[KEY] for group in given["param_groups"] if KEY in group), None)
    for group, theirs in zip(optimizer.param_groups, given["param_groups"]):
        group.update(
            {
                key: value
                for key, value in theirs.items()
                if key not in ("params", KEY) and (key in group or of_torch.get(key, KEY) != value)
            }
        )
    of_param = {id(p): given["state"][key] for key, p in zip(saved, params) if key in given["state"]}
    names = [name for _, name in _names(optimizer)]
    if any(name in entry for entry in of_param.values() for name in names):
        _take(optimizer, of_param, names)
    elif place is not None:
        _return_to(optimizer, json.loads(place))


def _return_to(optimizer, place: dict) -> None:
    if not optimizer.has_begun and place["step"]:
        optimizer._begin(is_resuming=True, checkpoint=place["checkpoint"] or None)
    if optimizer._done != place["step"]:
        raise ValueError(
            f"This state is of step {place['step']}, and the state in path is at step {optimizer._done}: "
            f"call opt.save() whenever the model is saved."
        )


def _take(optimizer, of_param: dict, names: list) -> None:
    """The state goes on from these moments and from the parameters as they are."""
    if not has_moments(optimizer):
        raise of_all_ranks(
            ValueError(
                "Moments are loaded into DTensors alone: of plain parameters each rank has a "
                "part of the state. Call opt.resume() to go on from it."
            )
        )

    def carried(parts) -> Carried:
        arrays, updates = {}, {}
        for piece in parts.pieces:
            entry = of_param.get(id(parts.params[piece.number]), {})
            updates[id(piece.tensor)] = int(entry.get("step", 0))
            begin, end = piece.begin, piece.begin + piece.place.count
            arrays[id(piece.tensor)] = [
                piece.tensor.detach().float().cpu().clone(),
                torch.zeros(end - begin),
                torch.zeros(end - begin),
            ]
            for place, name in _names(optimizer):
                if name in entry:
                    flat = flat_like(local(entry[name]), piece.place.order)
                    arrays[id(piece.tensor)][1 + place] = flat[begin:end].float().cpu().contiguous().clone()
        step = max([int(entry["step"]) for entry in of_param.values() if "step" in entry], default=optimizer._done)
        return Carried(_engine.Position(step, step, 1.0, 0), arrays, updates, b"")

    optimizer.begin_from(carried)
