"""Opens the ranks' states at the same step, and writes their checkpoints. Used by optimizer.py."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import secrets
import sys

from .._model.groups import DTYPES
from .._starting.names import whole_path
from .._starting.settings import flattened
from . import folders, saved
from .carry import carry
from .engines import engine_of, paths_of, whole_of
from .world import of_all_ranks


class _StartAnew(Exception):
    """No rank has taken a step, and not all have a state."""


def _said(layout: tuple) -> str:
    if layout[0] < 0:
        return "the state of nearstep-run or of one process"
    return "the state of one rank" if layout[1] == 1 else f"the state of {layout[1]} ranks"


class _Start:
    def __init__(self, optimizer, parts, world, is_resuming: bool):
        self._optimizer, self._parts, self._world, self._is_resuming = optimizer, parts, world, is_resuming
        self._paths = paths_of(optimizer._given)

    # --- What is there ---

    def _look(self) -> tuple:
        """The layout to go on from, or None; and the parts of it that this rank sees. Parts count before a state of the
        whole, which goes when they are complete."""
        here = self._world.together(lambda: folders.look(self._paths[0]))
        is_whole = folders.has_whole(self._paths[0])
        of_ranks = self._world.gather_objects(([(part.layout, part.rank) for part in here], is_whole))
        try:
            layout = folders.complete(itertools.chain.from_iterable(seen for seen, _ in of_ranks))
        except ValueError as error:
            layout = None
            if not any(has for _, has in of_ranks):
                raise of_all_ranks(error) from None
        if layout is None and any(has for _, has in of_ranks):
            old = whole_of(self._optimizer.lay_out_whole())
            first = next(rank for rank, (_, has) in enumerate(of_ranks) if has)
            return old.layout, [old] if first == self._world.rank else []
        return layout, [part for part in here if part.layout == layout]

    def _part(self, run: str, number: int) -> folders.Part:
        layout = self._parts.layout
        return folders.Part(
            run,
            number,
            self._world.rank,
            self._world.size,
            DTYPES[layout.dtype],
            [piece.place for piece in self._parts.pieces],
            [layout.group_of[piece.number] for piece in self._parts.pieces],
        )

    def _is_in_place(self, layout: tuple, here: list) -> bool:
        if layout[0] < 0:
            return False
        mine = self._part(layout[2], layout[0])
        is_mine = layout[1] == self._world.size and any(
            part.rank == mine.rank and part.has_same_elements(mine) for part in here
        )
        return all(self._world.gather_objects(is_mine))

    # --- Beginning ---

    def begin(self, checkpoint: str | None, carried) -> int:
        if carried is not None:
            return self._begin_from(carried(self._parts))
        is_fresh = bool(self._optimizer._given["fresh"])
        if checkpoint and not is_fresh:
            return self._begin_from_checkpoint(checkpoint)
        if is_fresh:
            self._world.together(lambda: folders.remove(self._paths, keep=-1))
        layout, here = (None, []) if is_fresh else self._look()
        if layout is None or self._is_in_place(layout, here):
            done = self._begin_in_place(layout, is_fresh, None)
            if is_fresh:
                self._world.together(lambda: folders.remove_whole(self._paths))
            return done
        if not self._is_resuming:
            raise of_all_ranks(
                ValueError(
                    f"{self._paths[0]} holds {_said(layout)}: call opt.resume() to go on from it, or start anew with "
                    "fresh=True."
                )
            )
        return self._begin_elsewhere(layout, here)

    def _begin_from_checkpoint(self, path: str) -> int:
        """The state in the folders of ``path``, of whichever layout, is replaced."""
        world = self._world
        found = world.together(lambda: saved.Saved(path, lambda: whole_of(self._optimizer.lay_out_whole())))
        part = self._part("", 0)
        if all(world.gather_objects(found.fits(part))):
            layout, here = None, []
            with contextlib.suppress(ValueError, RuntimeError):  # what is damaged goes
                layout, here = self._look()
            if layout is None or not self._is_in_place(layout, here):
                world.together(lambda: folders.remove(self._paths, keep=-1))
                layout = None
            done = self._begin_in_place(layout, False, found)
            world.together(lambda: folders.remove_whole(self._paths))
            return done
        world.together(lambda: os.makedirs(self._paths[0], exist_ok=True))
        done = self._begin_from(found.carry(world, self._paths[0], self._parts.pieces))
        self._optimizer.extra = world.together(found.extra)
        return done

    def _begin_in_place(self, layout: tuple | None, is_fresh: bool, checkpoint: saved.Saved | None) -> int:
        run, number = (self._new_run(), 0) if layout is None else (layout[2], layout[0])
        part = self._part(run, number)
        if layout is None:
            self._world.together(lambda: part.write(os.path.join(self._paths[0], part.name)))
        try:
            return self._open(part, is_fresh, checkpoint)
        except _StartAnew:
            return self._open(part, True, None)

    def _begin_from(self, carried) -> int:
        self._world.together(lambda: folders.remove(self._paths, keep=-1))
        part = self._part(self._new_run(), 0)
        done = self._open(part, True, None, carried)
        self._world.together(lambda: part.write(os.path.join(self._paths[0], part.name)))
        self._world.together(lambda: folders.remove_whole(self._paths))
        return done

    def _begin_elsewhere(self, layout: tuple, here: list) -> int:
        world, paths, optimizer = self._world, self._paths, self._optimizer
        part = self._part(layout[2] or self._new_run(), layout[0] + 1)
        world.together(lambda: folders.remove_newer(paths, layout[0]))

        def opened(old):
            return engine_of(old, optimizer, paths, world, optimizer.lay_out_whole())

        carried = carry(world, paths[0], layout[1], here, opened, self._parts.pieces)
        done = self._open(part, True, None, carried)
        world.together(lambda: part.write(os.path.join(paths[0], part.name)))
        world.together(lambda: folders.remove(paths, keep=part.number))
        if layout[0] < 0:
            world.together(lambda: folders.remove_whole(paths))
        if world.rank == 0:
            says = f"nearstep: {_said(layout)} at step {done} is that of {world.size} from here on"
            print(says, file=sys.stderr)
        return done

    def _new_run(self) -> str:
        return self._world.gather_objects(secrets.token_hex(8))[0]

    def _open(self, part: folders.Part, is_fresh: bool, checkpoint: saved.Saved | None, carried=None) -> int:
        optimizer, world = self._optimizer, self._world
        own = world.together(lambda: optimizer.make_own(part.within(self._paths), part.name, is_fresh))
        mine, step = ("", None) if checkpoint is None else (checkpoint.of_rank(world.rank), checkpoint.step)
        opening = _OpenTogether(world, self._parts, carried.position.step if carried is not None else step)
        if own._params:
            own._session.open_together, own._session.speaks = opening, world.rank == 0
            own._session.carried = carried and carried.of(own._params)
            if world.is_several:
                own._session.whole = (world.size, sum(p.numel() for p in self._parts.params))
            own._session.processes_beside = world.beside
            world.together(lambda: own._begin(is_resuming=self._is_resuming, checkpoint=mine))
        else:
            opening(None, None)
            world.together(lambda: None)
        done = opening.step
        if any(row != [done] for row in world.gather([own._conductor.steps if own._params else done])):
            raise RuntimeError(
                f"The state of one rank is damaged at step {done}, which the other ranks have: go on "
                f"from a checkpoint by opt.resume(checkpoint)."
            )
        optimizer._own, optimizer.extra, optimizer._part = own, own.extra, part
        return done


class _OpenTogether:
    """The ranks agree on the step between the open and the begin of their engines."""

    def __init__(self, world, parts, known_step: int | None):
        """``known_step``: of what the ranks go on from, other than the newest durable state; or None."""
        self._world, self._parts, self._known_step = world, parts, known_step
        self.step = known_step or 0

    def __call__(self, conductor, request) -> bool:
        """Opens the engine, and returns whether it needs start values. None: this rank has no part of the
        parameters."""
        needs_values = self._world.together(lambda: conductor is not None and conductor.open(request))
        rows = self._world.gather([math.inf if conductor is None else conductor.newest_step])
        steps = {rank: int(row[0]) for rank, row in enumerate(rows) if row[0] != math.inf}
        if self._known_step is not None:
            return needs_values
        if max(steps.values(), default=-1) < 0:
            self._parts.share_start()
        elif min(steps.values()) >= 0:
            self.step = min(steps.values())
            self._world.together(lambda: conductor is not None and conductor.keep_to(self.step))
        elif max(steps.values()) == 0:
            if conductor is not None:
                conductor.close()
            raise of_all_ranks(_StartAnew())
        else:
            lacking = next(rank for rank, step in steps.items() if step < 0)
            raise of_all_ranks(
                RuntimeError(
                    f"Rank {lacking} finds no state, and others are at step "
                    f"{max(steps.values())}: bring its folder back, or start anew with "
                    f"fresh=True."
                )
            )
        return needs_values


def begin(optimizer, parts, world, is_resuming: bool, checkpoint: str | None, carried) -> int:
    """Makes the optimizer of this rank's part, and opens its state. ``carried``: see Local.begin_from(), or None.
    Returns the steps done."""
    return _Start(optimizer, parts, world, is_resuming).begin(
        checkpoint and whole_path("checkpoint", checkpoint), carried
    )


# --- Checkpoints ---


def save(optimizer, folder: str | None, extra) -> str:
    """Each rank writes a checkpoint of its part. Returns the path of a file that names them."""
    own, world, part = optimizer._own, optimizer._world, optimizer._part
    given = flattened(optimizer._given["config"] or {}).get("checkpoint.path")
    folder = whole_path("folder", folder or given or os.path.join(paths_of(optimizer._given)[0], "checkpoints"))
    path = world.together(lambda: own.save(os.path.join(folder, part.name), extra) if own._params else "")
    return saved.write(world, folder, part, optimizer._done, path)
