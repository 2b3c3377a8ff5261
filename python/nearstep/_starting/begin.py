"""Starts the engine: gives memory to empty parameters, and start values to the state. Called by _session.py."""

from __future__ import annotations

import torch

from . import initial, waiting
from .._model.empty import fill, give_back, is_empty, refuse_to_draw
from .._model.groups import DTYPES
from .._model.parameters import Parameters


def refuse_empty_without_module(params: list, module) -> None:
    if module is None and any(map(is_empty, params)):
        raise ValueError(
            "Parameters from nearstep.empty() get their values by their modules: make the optimizer from the module, "
            "or from nearstep.groups(module)."
        )


def begin_state(
    conductor, parameters: Parameters, params: list, module, weights, seed: int, needs_values: bool, streaming, carried
) -> tuple:
    """Fills or resumes the state, and then the module. ``weights``: see Weights; None: empty parameters are drawn.
    ``streaming``: see Streaming; or None. ``carried``: see Carried; or None. Returns the engine's messages, and whether
    the state is written in the background from here on. If it fails, empty parameters are empty again."""
    trained = set(map(id, params))
    frozen = [] if module is None else [p for p in module.parameters() if is_empty(p) and id(p) not in trained]
    were_empty = parameters.were_empty if needs_values else []
    drawn = [params[i] for i in were_empty]
    if weights is None:
        refuse_to_draw(drawn)
    parameters.stored.wait_in_file([i for i in were_empty if weights is None or weights.is_made(params[i])])
    filled = parameters.fill_empty()
    try:
        for p in frozen:
            home = streaming and streaming.home(p)
            filled.append(fill(p, torch.empty(p.shape, dtype=p.dtype, device=p.device) if home is None else home))
        if weights is not None:
            for p in frozen:
                weights.fill(p, p.data)
            weights.read_buffers(module)
        elif drawn or frozen:
            initial.draw(module, drawn + frozen, seed, parameters.device)
        with waiting.shown(conductor):
            lines = _fill_state(conductor, parameters, params, weights, needs_values, carried)
            is_beside = needs_values and weights is None and carried is None and parameters.keep_start()
            if not is_beside:
                conductor.await_start()
                parameters.take_start()
    except BaseException:
        give_back(filled)
        raise
    parameters.note_start()
    if needs_values and module is not None:
        lines += _lines_about_nan(module, trained)
    if weights is not None and weights.line:
        lines.append(weights.line)
    if weights is None and drawn + frozen:
        count = sum(p.numel() for p in drawn + frozen)
        lines.append(f"without weights=FOLDER, {count / 1e6:.2f} M parameters got random values from their modules")
    return lines, is_beside


@torch.no_grad()
def _lines_about_nan(module, trained: set) -> list[str]:
    """Names frozen parameters that have NaN, which the engine does not see. ``trained``: ids of the others. Infinite
    ones may be masks.
    """
    frozen = [
        (name, p) for name, p in module.named_parameters() if id(p) not in trained and p.dtype in DTYPES and p.numel()
    ]
    names = [name for name, p in frozen if type(p.data) is torch.Tensor and not p.is_meta and p.max().isnan()]
    others = f" and {len(names) - 1} more" if names[1:] else ""
    return (
        [
            f"the frozen parameter {names[0]}{others} has NaN, with which no gradient may be finite: every step "
            "would be skipped then"
        ]
        if names
        else []
    )


@torch.no_grad()
def _fill_state(conductor, parameters, params, weights, needs_values, carried) -> list[str]:
    if not needs_values:
        return conductor.begin([], None, [], None)
    if carried is not None:
        return conductor.begin([(one.data_ptr(), "fp32") for one in carried.masters], None, [""] * len(params), carried)
    were_empty = set(parameters.were_empty)
    kept, pieces, names = [], [], []
    for i, p in enumerate(params):
        names.append("" if weights is None else weights.name_of(p))
        if names[-1]:
            pieces.append((0, DTYPES[parameters.values[i].dtype]))
            continue
        value = parameters.stored.start_value(i)
        if weights is not None and weights.is_made(p):
            weights.fill(p, value)
        elif i not in were_empty and (parameters.is_from_storage or p.dtype != value.dtype):
            # Values are read from where they are, if the host need not have room for all.
            value = (p.detach() if parameters.is_from_storage else p.detach().to("cpu")).contiguous()
            kept.append(value)
        elif p.data_ptr() != value.data_ptr():  # straight into the engine's memory, which a GPU copies to at full rate
            value.copy_(p)
        pieces.append((value.data_ptr(), DTYPES[value.dtype]))
    if parameters.is_from_storage and parameters.device.type == "cuda":
        torch.cuda.synchronize(parameters.device)  # the engine reads what is on the GPU, in a stream of its own
    return conductor.begin(pieces, weights and weights.files, names, kept)
