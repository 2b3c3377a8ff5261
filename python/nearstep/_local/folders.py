"""Where the ranks' states lie in the folders of ``path``, and which parts of the parameters they are. Used by
start.py, engines.py and saved.py.

Each rank has a folder of its own, rank-R-of-N, in which the engine keeps its state. Beside it parts.json says which
elements of which parameters that is. A run that goes on with other parts writes new folders, whose names end in the
number of the layout, and then removes the old ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat

from .boxes import Range, range_of

_NAME = re.compile(r"rank-(0|[1-9][0-9]{0,6})-of-([1-9][0-9]{0,6})(?:\.layout-([1-9][0-9]{0,6}))?")
_MANIFEST = re.compile(r"rank-[0-9]+\.(set-1\.)?manifest")
_OF_WHOLE = re.compile(
    r"rank-[0-9]+\.(set-1\.)?(manifest|program-[01]|device-[0-9]+\.(set-1\.)?state)(\.partial)?|newest-checkpoint"
)
_FILE = "parts.json"
_MOST_BYTES = 1 << 28
_DTYPES = ("fp32", "bf16", "fp16")
_OF_ENGINE = re.compile(r"rank-0\..*|newest-checkpoint|parts\.json(\.partial)?|\..*")


def name_of(rank: int, ranks: int, number: int) -> str:
    return f"rank-{rank}-of-{ranks}" + (f".layout-{number}" if number else "")


class Part:
    """A rank's state: its tensors are ``ranges`` of parameters, each of a parameter group."""

    def __init__(self, run: str, number: int, rank: int, ranks: int, dtype: str, ranges: list, groups: list):
        self.run, self.number, self.rank, self.ranks, self.dtype = run, number, rank, ranks, dtype
        self.ranges: list[Range] = ranges
        self.groups: list[int] = groups

    @property
    def name(self) -> str:
        return name_of(self.rank, self.ranks, self.number)

    def within(self, paths: list) -> list:
        return [os.path.join(path, self.name) for path in paths]

    @property
    def layout(self) -> tuple:
        """Returns the number, ranks and run of the state, which all its parts share."""
        return self.number, self.ranks, self.run

    @property
    def tensors(self) -> list:
        """The name, shape and parameter group of each, as the engine has them."""
        return [(one.name, [one.count], group) for one, group in zip(self.ranges, self.groups)]

    def has_same_elements(self, other: Part) -> bool:
        return (self.dtype, self.ranges, self.groups) == (other.dtype, other.ranges, other.groups)

    def as_json(self) -> dict:
        return {
            "run": self.run,
            "number": self.number,
            "rank": self.rank,
            "ranks": self.ranks,
            "dtype": self.dtype,
            "groups": self.groups,
            "ranges": [one.as_json() for one in self.ranges],
        }

    def write(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        write_json(os.path.join(folder, _FILE), self.as_json())


class Whole(Part):
    """The state of one process, or of ranks that MPI started: it lies in the folders of ``path`` themselves."""

    def __init__(self, dtype: str, ranges: list, groups: list):
        super().__init__("", -1, 0, 1, dtype, ranges, groups)

    @property
    def name(self) -> str:
        return ""

    def within(self, paths: list) -> list:
        return list(paths)

    @property
    def tensors(self) -> list:
        return [(one.name, list(one.shape), group) for one, group in zip(self.ranges, self.groups)]


def write_json(path: str, about: dict) -> None:
    """Replaces a file of JSON: after a crash it is the new one or the old one. A link in its place is not followed."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path + ".partial")
    with open(path + ".partial", "x") as file:
        json.dump(about, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".partial", path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: str):
    """Raises ValueError for what is no plain file of JSON."""
    with open(path, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise ValueError("it is no plain file of a size that it may have")
        return json.load(file)


def forget(folder: str) -> None:
    """Removes the description of the part, so that no run goes on from the folder's state."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, _FILE))


def part_of(about: dict) -> Part:
    """Reads a part from JSON. Raises ValueError, KeyError, TypeError or RecursionError for anything else."""
    part = Part(
        about["run"],
        about["number"],
        about["rank"],
        about["ranks"],
        about["dtype"],
        [range_of(one) for one in about["ranges"]],
        about["groups"],
    )
    are_numbers = all(type(one) is int and one >= 0 for one in (part.number, part.rank, part.ranks))
    has_groups = all(type(group) is int and 0 <= group < 1 << 16 for group in part.groups)
    is_whole = are_numbers and isinstance(part.run, str) and part.dtype in _DTYPES
    if not is_whole or not has_groups or len(part.groups) != len(part.ranges):
        raise ValueError("it describes a part of a state that cannot be")
    return part


def _read(path: str, named: tuple) -> Part:
    try:
        part = part_of(read_json(path))
        if (part.rank, part.ranks, part.number) != named:
            raise ValueError("it is of another folder")
        return part
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} does not say which part of a model lies beside it ({error}): bring the file back, "
            f"or start anew with fresh=True."
        ) from error


def look(path: str) -> list:
    """The parts whose states are in the folder."""
    found = []
    for name in _names_in(path):
        named, file = _NAME.fullmatch(name), os.path.join(path, name, _FILE)
        if named and os.path.lexists(file):
            found.append(_read(file, (int(named[1]), int(named[2]), int(named[3] or 0))))
    return found


def complete(seen) -> tuple | None:
    """The newest layout of which all ranks' parts are there. ``seen``: pairs of a layout and a rank. Raises ValueError
    if there are only some."""
    ranks_of: dict = {}
    for layout, rank in seen:
        ranks_of.setdefault(layout, set()).add(rank)
    whole = [layout for layout, ranks in ranks_of.items() if len(ranks) == layout[1]]
    if ranks_of and not whole:
        number, ranks, _ = newest = max(ranks_of)
        missing = next(rank for rank in range(ranks) if rank not in ranks_of[newest])
        raise ValueError(
            f"The folder {name_of(missing, ranks, number)}, which holds a part of the state, is missing in path: bring "
            "it back, or start anew with fresh=True."
        )
    return max(whole, default=None)


def _names_in(path: str) -> list:
    try:
        return sorted(os.listdir(path))
    except OSError:  # not there, or the engine says what is wrong with it
        return []


def has_parts(path: str) -> bool:
    """Whether ranks that PyTorch started have left folders, also begun ones."""
    return any(map(_NAME.fullmatch, _names_in(path)))


def has_whole(path: str) -> bool:
    """Whether one rank, or ranks that MPI started, have left a state."""
    return any(map(_MANIFEST.fullmatch, _names_in(path)))


def remove(paths: list, keep: int) -> None:
    """Removes this user's files of all layouts but one."""
    _remove_all(paths, lambda number: number != keep)


def remove_newer(paths: list, newest: int) -> None:
    """Removes what a start that was killed has left of newer layouts."""
    _remove_all(paths, lambda number: number > newest)


def _remove_all(paths: list, is_left) -> None:
    for path in paths:
        for name in _names_in(path):
            named = _NAME.fullmatch(name)
            if named and is_left(int(named[3] or 0)):
                _remove(os.path.join(path, name))


def remove_whole(paths: list) -> None:
    """Removes this user's files of a state of one rank, or of ranks that MPI started."""
    for path in paths:
        with contextlib.suppress(OSError):
            _remove_files(path, _OF_WHOLE)


def _remove_files(folder: str, names) -> None:
    for entry in list(os.scandir(folder)):
        found = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and names.fullmatch(entry.name):
            os.remove(entry.path)


def _remove(folder: str) -> None:
    with contextlib.suppress(OSError):  # another rank may be removing it
        if stat.S_ISLNK(os.lstat(folder).st_mode):
            return
        forget(folder)
        _remove_files(folder, _OF_ENGINE)
        os.rmdir(folder)
