"""Checkpoints of ranks that PyTorch started: the ranks' own ones, and a small file that names them and says which
elements each is of. Other ranks, other meshes and other launchers read them, too. Used by _optimizer.py and
start.py."""

from __future__ import annotations

import contextlib
import os
import re
import stat

from .. import _engine
from .._saving import extra
from . import folders
from .carry import carry
from .world import of_all_ranks

_SUFFIX = ".ranks.json"
_INDEX = re.compile(r"rank-[0-9]+-of-[0-9]+(\.layout-[0-9]+)?/(run-[0-9a-f]+/)?step-[0-9]+\.h5")


def is_of_ranks(path: str) -> bool:
    return path.endswith(_SUFFIX)


def write(world, folder: str, part: folders.Part, step: int, own: str) -> str:
    """``own``: the checkpoint of this rank, in the folder; empty if it has no part. Returns the path of the file that
    names those of all ranks."""
    about = world.gather_objects({"checkpoint": own and os.path.relpath(own, folder), "part": part.as_json()})
    path = os.path.join(folder, f"step-{step:08}{_SUFFIX}")

    def publish() -> None:
        if world.rank == 0:
            os.makedirs(folder, exist_ok=True)
            folders.write_json(path, {"step": step, "ranks": about})
            _remove_stale(folder)

    world.together(publish)
    return path


def _remove_stale(folder: str) -> None:
    """Removes this user's files that name checkpoints which newer ones have replaced."""
    for entry in list(os.scandir(folder)):
        found = entry.stat(follow_symlinks=False)
        if is_of_ranks(entry.name) and stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            with contextlib.suppress(OSError, ValueError):
                if not Saved(entry.path, None).is_there():
                    os.remove(entry.path)


class Saved:
    """A checkpoint that ``path`` names: one of each rank, or one of the whole state. Raises ValueError for anything
    else. ``whole``: makes the part of a whole state."""

    def __init__(self, path: str, whole):
        if not is_of_ranks(path):
            self.parts, self._paths, self.step = [whole()], [path], _engine.CheckpointState(path).position.step
            return
        try:
            about = folders.read_json(path)
            self.step, found = int(about["step"]), about["ranks"]
            self.parts = [folders.part_of(one["part"]) for one in found]
            names = [one["checkpoint"] for one in found]
            places = [(part.rank, part.ranks) for part in self.parts]
            if places != [(rank, len(found)) for rank in range(len(found))] or not found:
                raise ValueError("ranks are missing")
            for name, part in zip(names, self.parts):
                if bool(name) != bool(part.ranges) or (name and not _INDEX.fullmatch(name)):
                    raise ValueError(f"a rank has no checkpoint of the name {name!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{path} names no checkpoints of several ranks ({error}): give the path that opt.save() returned."
            ) from error
        self._paths = [name and os.path.join(os.path.dirname(path), name) for name in names]

    def is_there(self) -> bool:
        return all(map(os.path.exists, filter(None, self._paths)))

    def of_rank(self, rank: int) -> str:
        """The path of a rank's checkpoint; empty if it has no part."""
        return self._paths[rank]

    def fits(self, part: folders.Part) -> bool:
        """Whether the same ranks have the same parts."""
        mine = self.parts[part.rank] if len(self.parts) == part.ranks else None
        return mine is not None and not isinstance(mine, folders.Whole) and mine.has_same_elements(part)

    def carry(self, world, folder: str, pieces: list):
        """See carry(): the state as that of these pieces."""
        here = [part for part, path in zip(self.parts, self._paths) if not path or os.path.exists(path)]
        seen = {rank for of_rank in world.gather_objects([part.rank for part in here]) for rank in of_rank}
        lacking = next((part.rank for part in self.parts if part.rank not in seen), None)
        if lacking is not None:
            raise of_all_ranks(
                ValueError(f"The checkpoint {self._paths[lacking]} is missing: bring it back, or go on from another.")
            )
        return carry(world, folder, len(self.parts), here, lambda part: _State(self._paths[part.rank], part), pieces)

    def extra(self):
        """Returns the argument ``extra`` of save(), as the first rank that has a part gave it."""
        return extra.read(os.path.dirname(next(filter(None, self._paths))), self.step)


def extra_of(path: str):
    return Saved(path, None).extra()


class _State:
    """A checkpoint of a part, with the calls of the engine that has the part's state."""

    def __init__(self, path: str, part: folders.Part):
        self._state = _engine.CheckpointState(path)
        wanted = [(name, list(shape)) for name, shape, _ in part.tensors]
        if [(name, list(shape)) for name, shape in self._state.tensors] != wanted:
            raise ValueError(
                f"The checkpoint {path} has other parameters than this model, or was replaced: give the path that "
                "opt.save() returned, and start from the same model."
            )
        self.newest_step = self._state.position.step
        self.read_state, self.updates = self._state.read_state, self._state.updates

    def open(self, request) -> None:
        pass

    def keep_to(self, step: int) -> None:
        pass

    def begin(self, *_) -> None:
        pass

    def position(self):
        return self._state.position

    @property
    def program_state(self) -> bytes:
        return self._state.program_state

    def close(self) -> None:
        self._state = None
