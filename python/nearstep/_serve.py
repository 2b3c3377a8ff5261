"""Runs a rank that holds devices and computes nothing. Called by programs as nearstep.serve(), and by __main__.py."""

from __future__ import annotations

import os

from . import _engine, _ranks
from ._starting.suggestions import suggests
from ._starting.settings import flattened, settings_of

# Keys that a storage node may set itself. The ranks that train set all others for every rank.
_OWN = ("csd.cards", "csd.io", "csd.slots", "csd.xclbin")


@suggests
def serve(path=None, config: dict | None = None) -> None:
    """Holds the optimizer state of the ranks that train, which compute on their own hosts and then need no device. The
    last ranks call it, and nothing else of nearstep's; it returns when rank 0's program ends. Gradients come encoded,
    new parameters go back, and the state stays here. ``opt.rank`` and ``opt.ranks`` count those that train.

    ``path``: folder or folders for the state, one per drive; default: those of the ranks that train. ``config``: keys
    of this host's devices, such as ``{"csd.slots": 8}``.

    Raises ValueError for settings that do not fit, and what the optimizers raise for files and folders."""
    settings = settings_of({"path": path, "config": config}, elements=0)
    kept = (*_OWN, *(() if path is None else ("csd.path",)))
    refused = sorted(flattened(config or {}).keys() - set(_OWN))
    if refused:
        raise ValueError(f"config has {refused[0]!r}, which the ranks that train say for all: leave it out here.")
    _ranks.check_launcher(_ranks.are_of_mpi())
    _ranks.note_serving()
    _engine.serve([one for one in settings if one.partition("=")[0] in kept], os.environ.get("NEARSTEP_CSDS", ""))
