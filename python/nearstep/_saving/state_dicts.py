"""What ``opt.state_dict()`` says of where the state is, and how an optimizer returns there."""

from __future__ import annotations

import functools
import os
import weakref

from .state import Place


def shown(optimizer) -> Place:
    place = _place_of(optimizer._session) if optimizer.has_begun else {}
    return Place(place, functools.partial(_make_durable, weakref.ref(optimizer)))


def _place_of(session) -> dict:
    conductor, (saved_step, saved) = session.conductor, session.saved
    step = conductor.steps
    folder = os.path.abspath(conductor.checkpoint_folder)
    checkpoint = saved if saved_step == step else os.path.join(folder, "state_dicts", f"run-{conductor.line}", f"step-{step:08}", f"step-{step:08}.h5")
    return {"path": list(conductor.paths), "run": conductor.line, "step": step, "checkpoint": checkpoint}


def place_to_return_to(conductor, state_dict: dict) -> dict:
    """``conductor``: None before the start. Empty if the state is from before the first step. Raises if the optimizer cannot
    return there."""
    place = state_dict.get("nearstep")
    if place is None:
        raise ValueError("This is the state of another optimizer: nearstep's says where its state is. Start from the module's weights.")
    if not isinstance(place, dict) or (place and not (isinstance(place.get("checkpoint"), str) and {"path", "run", "step"} <= place.keys())):
        raise ValueError("This state does not say where its checkpoint is: load one that opt.state_dict() gave.")
    here = None if conductor is None else (conductor.line, conductor.steps)
    if here is not None and not place and conductor.steps > 0:
        raise RuntimeError(
            f"This state is from before the optimizer began, which is at step {here[1]} now: load_state_dict() comes before the first forward, or make a "
            "new optimizer with fresh=True."
        )
    if here is not None and place and here != (place["run"], place["step"]):
        raise RuntimeError(f"This state is of step {place['step']}, and the optimizer is at step {here[1]}: load_state_dict() comes before the first forward.")
    return place


def check_returned(conductor, place: dict, has_checkpoint: bool) -> None:
    """Raises ValueError if the state that was opened is not the one in ``place``."""
    if conductor.steps != place["step"]:
        raise ValueError(
            f"The state in {', '.join(place['path'])} is at step {conductor.steps} and there is no checkpoint of step "
            f"{place['step']} ({place['checkpoint']}): call opt.save() whenever the model is saved."
        )
    if place["run"] not in conductor.lines:
        found = place["checkpoint"] if has_checkpoint else ", ".join(place["path"])
        raise ValueError(f"{found} holds step {place['step']} of another run, which has replaced this state: give each run a folder of its own.")


def _make_durable(me, place) -> None:
    """Has a state_dict() name a checkpoint that is there: the one that save() wrote since, else a new one."""
    optimizer = me()
    if not place or os.path.exists(place["checkpoint"]):
        return
    saved_step, saved = (-1, "") if optimizer is None else optimizer._session.saved
    if saved_step == place["step"] and os.path.exists(saved):
        place["checkpoint"] = saved
        return
    begun = optimizer is not None and optimizer.has_begun and optimizer._is_ready
    if not begun or (optimizer._conductor.line, optimizer._conductor.steps) != (place["run"], place["step"]):
        raise RuntimeError(f"The state of step {place['step']} is gone, since training went on: save opt.state_dict() before the next step, or call opt.save() first.")
    if not optimizer._conductor.is_alone:
        raise RuntimeError("With several ranks call opt.save() on all of them before one saves opt.state_dict(): it says where that checkpoint is.")
    optimizer.save(os.path.dirname(place["checkpoint"]))
