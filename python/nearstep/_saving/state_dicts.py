"""Writes into ``opt.state_dict()`` where the state is, and lets an optimizer return there. Used by _optimizer.py."""

from __future__ import annotations

import functools
import json
import os
import weakref

from .state import Place

KEY = "nearstep"  # in one of the parameter groups: torch.distributed.checkpoint leaves out what stands beside them


def shown(optimizer) -> Place:
    place = _place_of(optimizer._session) if optimizer.has_begun else {}
    return Place(place, functools.partial(_make_durable, weakref.ref(optimizer)))


def _place_of(session) -> dict:
    conductor, (saved_step, saved) = session.conductor, session.saved
    step = conductor.steps
    folder = os.path.abspath(conductor.checkpoint_folder)
    checkpoint = (
        saved
        if saved_step == step
        else os.path.join(folder, "state_dicts", f"run-{conductor.line}", f"step-{step:08}", f"step-{step:08}.h5")
    )
    return {"path": list(conductor.paths), "run": conductor.line, "step": step, "checkpoint": checkpoint}


def place_of(state_dict: dict) -> dict:
    """Returns the path of the state that the dictionary names; empty if the dictionary was made before the first step.
    Raises ValueError if it names none."""
    groups = state_dict["param_groups"]
    place = next(
        (group[KEY] for group in groups if KEY in group), state_dict.get(KEY)
    )  # 0.2.0 had it beside the groups
    if place is None:
        raise ValueError(
            "This is no state that nearstep's opt.state_dict() gave, which says where the state is: go on in path by "
            "opt.resume(), or start from the module's weights."
        )
    try:
        place = json.loads(place) if isinstance(place, str) else place
    except ValueError:
        place = None
    if not isinstance(place, dict) or (
        place and not (isinstance(place.get("checkpoint"), str) and {"path", "run", "step"} <= place.keys())
    ):
        raise ValueError("This state does not say where its checkpoint is: load one that opt.state_dict() gave.")
    return place


def check_reachable(conductor, place: dict) -> None:
    """``conductor``: None before the start. Raises RuntimeError if the optimizer cannot return there."""
    here = None if conductor is None else (conductor.line, conductor.steps)
    if here is not None and not place and conductor.steps > 0:
        raise RuntimeError(
            f"This state is from before the optimizer began, which is at step {here[1]} now: load_state_dict() comes "
            "before the first forward, or make a "
            "new optimizer with fresh=True."
        )
    if here is not None and place and here != (place["run"], place["step"]):
        raise RuntimeError(
            f"This state is of step {place['step']}, and the optimizer is at step {here[1]}: load_state_dict() comes "
            "before the first forward."
        )


def _check_returned(conductor, place: dict, has_checkpoint: bool) -> None:
    """Raises ValueError if the state that was opened is not the one in ``place``."""
    if conductor.steps != place["step"]:
        raise ValueError(
            f"The state in {', '.join(place['path'])} is at step {conductor.steps} and there is no checkpoint of step "
            f"{place['step']} ({place['checkpoint']}): call opt.save() whenever the model is saved."
        )
    if place["run"] not in conductor.lines:
        found = place["checkpoint"] if has_checkpoint else ", ".join(place["path"])
        raise ValueError(
            f"{found} holds step {place['step']} of another run, which has replaced this state: give each run a "
            "folder of its own."
        )


def return_to(optimizer, place: dict) -> None:
    """Begins at the place, unless the optimizer has begun: then check_reachable() has found it there."""
    if place and not optimizer.has_begun:
        has_checkpoint = os.path.exists(place["checkpoint"])
        optimizer._begin(is_resuming=True, checkpoint=place["checkpoint"] if has_checkpoint else "")
        _check_returned(optimizer._conductor, place, has_checkpoint)


def _make_durable(me, place: dict) -> dict:
    """The place, with a checkpoint that is there: the one that save() wrote since, else a new one."""
    optimizer = me()
    if not place or os.path.exists(place["checkpoint"]):
        return place
    saved_step, saved = (-1, "") if optimizer is None else optimizer._session.saved
    if saved_step == place["step"] and os.path.exists(saved):
        return {**place, "checkpoint": saved}
    begun = optimizer is not None and optimizer.has_begun and optimizer._is_ready
    if not begun or (optimizer._conductor.line, optimizer._conductor.steps) != (place["run"], place["step"]):
        raise RuntimeError(
            f"The state of step {place['step']} is gone, since training went on: save opt.state_dict() before the "
            "next step, or call opt.save() first."
        )
    if not optimizer._conductor.is_alone:
        raise RuntimeError(
            "With several ranks call opt.save() on all of them before one saves opt.state_dict(): it says where that "
            "checkpoint is."
        )
    optimizer.save(os.path.dirname(place["checkpoint"]))
    return place
