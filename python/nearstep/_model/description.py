"""Describes in one line what a run is and what it takes. Used by _session.py."""

from __future__ import annotations

import hashlib
import math

from .groups import plain_module


def _elements(params) -> int:
    return sum(p.numel() for p in params)


def of_model(module, names: list, params: list, moments: str) -> str:
    """The engine refuses the state of a model with another description."""
    kind = type(plain_module(module)).__name__ if module is not None else "tensors"
    return of_tensors(kind, [(name, tuple(p.shape)) for name, p in zip(names, params)], moments)


def of_tensors(kind: str, shapes: list, moments: str) -> str:
    """``shapes``: names and shapes."""
    digest = hashlib.sha256(repr(shapes).encode()).hexdigest()[:12]
    return (
        f"torch {kind}, {len(shapes)} tensors, {sum(math.prod(shape) for _, shape in shapes)} parameters, shapes "
        f"{digest}, moments of {moments}"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _state(facts: dict, is_beside: bool) -> str:
    """``facts`` of the engine: bytes of the state, seconds that reading or writing it took at the start, the devices,
    and the rated TB of a device's drive, or 0. ``is_beside``: it is written during the first step."""
    state_bytes = facts["state_bytes"]
    unit, name = (1e9, "GB") if state_bytes >= 1e9 else (1e6, "MB")
    line = f"its {state_bytes / unit:.3g} {name} " + (
        "are written during the first step" if is_beside else f"took {facts['start_s']:.2g} s"
    )
    if facts["rated_tbw"]:
        return (
            f"{line}, and its drives are rated for {facts['rated_tbw'] * 1e12 * facts['devices'] / state_bytes:.3g} "
            "updates, each of which writes them once"
        )
    return line


def _in_words(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count >= 1e5 else str(count)


def of_run(conductor, params: list, device, is_beside: bool, whole: tuple | None) -> str:
    """Returns the sentence that describes the run to the user. ``whole``: ranks that have an engine each, and elements
    of all their parameters; None: there is one engine."""
    facts = conductor.facts()
    how_many = f"{_in_words(_elements(params))} parameters on {device}"
    if whole is None:
        who = f"{how_many}, {_counted(conductor.ranks, 'rank')}"
    else:
        who = f"{_in_words(whole[1])} parameters, {_counted(whole[0], 'rank')}; rank 0 updates {how_many}"
    where = "on the GPU" if facts["encodes_on_gpu"] else "on the host"
    return (
        f"{who}, state on {_counted(facts['devices'], 'device')} in {', '.join(conductor.paths)}, gradients of "
        f"{facts['gradient_bytes_per_parameter']:.2f} bytes per parameter encoded {where}, step {conductor.steps}; "
        f"{_state(facts, is_beside)}"
    )
