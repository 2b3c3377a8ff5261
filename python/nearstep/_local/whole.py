"""The state of one process, or of ranks that MPI started, beside that of ranks which PyTorch started: each becomes
the other. Used by _optimizer.py."""

from __future__ import annotations

import os
import sys

from .. import _engine, _ranks
from . import folders, saved
from .carry import carry
from .engines import engine_of, paths_of, whole_of
from .parts import Piece
from .world import World


def is_in_the_way(optimizer, is_resuming: bool, checkpoint: str) -> bool:
    """Whether ranks that MPI started find the state of ranks that PyTorch started, which goes when theirs is there. A
    start that resumes takes it over before."""
    paths = paths_of(optimizer._given)
    if not _ranks.are_of_mpi() or not folders.has_parts(paths[0]):
        return False
    if optimizer._given["fresh"] or checkpoint:
        return True
    if not is_resuming:
        raise ValueError(
            f"{paths[0]} holds the state of ranks that PyTorch started: call opt.resume() to go on from it, or start "
            "anew with fresh=True."
        )
    _take_over(optimizer, paths)
    return True


def _take_over(optimizer, paths: list) -> None:
    """The state of ranks that PyTorch started becomes one that the engine divides anew. Only the first rank acts, and
    the others wait for it when they open the state."""
    if not _ranks.is_first():
        return
    layout = optimizer._session.layout
    parts = folders.look(paths[0])
    try:
        newest = folders.complete((part.layout, part.rank) for part in parts)
    except ValueError:
        if folders.has_whole(paths[0]):  # what is left of parts that have become the whole
            folders.remove(paths, keep=-1)
            return
        raise
    if newest is None:
        return

    def opened(part):
        return engine_of(part, optimizer, paths, World.alone(), layout)

    here = [part for part in parts if part.layout == newest]
    _write(optimizer, paths, carry(World.alone(), paths[0], newest[1], here, opened, _pieces(layout)))
    folders.remove(paths, keep=-1)
    print(f"nearstep: the state of {newest[1]} ranks that PyTorch started is nearstep-run's now", file=sys.stderr)


def _pieces(layout) -> list:
    return [Piece(i, place, 0, layout.params[i]) for i, place in enumerate(whole_of(layout).ranges)]


def _write(optimizer, paths: list, carried) -> None:
    """Writes the carried state as that of this process alone."""
    layout = optimizer._session.layout
    of_tensors = carried.of(layout.params)
    engine = engine_of(whole_of(layout), optimizer, paths, World.alone(), layout)
    try:
        engine.open(_engine.StartRequest(_engine.StartRequest.Kind.FRESH, ""))
        of_tensors.pass_to(engine)
        values = [(one.data_ptr(), "fp32") for one in of_tensors.masters]
        engine.begin(values, None, [""] * len(values), of_tensors)
        engine.await_start()
        engine.finish()
    finally:
        engine.close()


def unpack(optimizer, checkpoint: str) -> None:
    """A checkpoint of ranks that PyTorch started becomes the state in ``path``. Only the first rank acts, and the
    others wait for it when they open the state."""
    if not _ranks.is_first():
        return
    paths, layout = paths_of(optimizer._given), optimizer._session.layout
    found = saved.Saved(checkpoint, None)
    os.makedirs(paths[0], exist_ok=True)
    carried = found.carry(World.alone(), paths[0], _pieces(layout))
    folders.remove(paths, keep=-1)
    folders.remove_whole(paths)
    _write(optimizer, paths, carried)


def forget_parts(optimizer) -> None:
    """A run of MPI's has begun."""
    folders.remove(paths_of(optimizer._given), keep=-1)
