"""The state of one layout as that of another: each rank gets the elements that it holds from now on. Used by
start.py, saved.py and whole.py."""

from __future__ import annotations

import dataclasses

import torch

from .. import _engine
from .._pinned import padded, views
from .._storage import memory_of_file
from . import boxes, folders
from .world import of_all_ranks

_ARRAYS = 3  # masters and both moments
_AT_ONCE = 1 << 22  # elements that ranks send each other


@dataclasses.dataclass
class Carried:
    """``arrays``: of each piece, by its tensor's id; ``updates``: that it has had; ``program``: see
    Program.content()."""

    position: _engine.Position
    arrays: dict
    updates: dict
    program: bytes

    def of(self, tensors: list) -> CarriedTensors:
        """Returns the state of these tensors, in their order."""
        return CarriedTensors(
            self.position,
            [self.arrays[id(one)] for one in tensors],
            [self.updates[id(one)] for one in tensors],
            self.program,
        )


@dataclasses.dataclass
class CarriedTensors:
    position: _engine.Position
    arrays: list
    updates: list
    program: bytes

    @property
    def masters(self) -> list:
        return [master for master, _, _ in self.arrays]

    def pass_to(self, conductor) -> None:
        """Gives the state to an engine that has not begun. The engine reads the arrays until its start is over."""
        both = zip(self.arrays, self.updates)
        conductor.carry(
            self.position, [(one.data_ptr(), two.data_ptr(), updates) for (_, one, two), updates in both], self.program
        )


class _Old:
    """The state of an old rank, which this rank reads. ``opened``: makes the engine for a part; see carry()."""

    def __init__(self, part: folders.Part, opened):
        self.part = part
        self.conductor = opened(part) if part.ranges else None
        if self.conductor is not None:
            self.conductor.open(_engine.StartRequest(_engine.StartRequest.Kind.RESUME_IF_ANY, ""))
        self._last: tuple = (None, None)  # the number of the tensor that was read last, and its arrays

    @property
    def newest_step(self) -> float:
        return float("inf") if self.conductor is None else self.conductor.newest_step

    def begin(self, step: int) -> dict:
        """Opens it at this step. Returns what all ranks have to know."""
        about = {"part": self.part, "position": None, "updates": [], "program": b""}
        if self.conductor is not None:
            self.conductor.keep_to(step)
            self.conductor.begin([], None, [], None)
            found = self.conductor.position()
            about.update(
                position=(found.step, found.generation, found.loss_scale, found.good_steps),
                updates=self.conductor.updates(),
            )
            if self.part.rank == 0:
                about["program"] = self.conductor.program_state
        return about

    def read(self, i: int, first: int, count: int):
        """Masters and moments of elements of a tensor."""
        if self._last[0] != i:
            self._last = (i, list(self.conductor.read_state(i)))
        return torch.stack([one[first : first + count] for one in self._last[1]])

    def close(self) -> None:
        if self.conductor is not None:
            self.conductor.close()


def carry(world, folder: str, ranks: int, here: list, opened, pieces: list) -> Carried:
    """Reads the old state at the step that all of its ranks have. ``ranks``: their number; ``here``: its parts that
    this rank sees; ``opened``: makes the engine for a part of it, without opening it; ``folder``: where the state is,
    and files without a name in which it waits."""
    sees = world.gather_objects([part.rank for part in here])
    readers = {rank: [one for one in range(world.size) if rank in sees[one]] for rank in range(ranks)}
    readers = {rank: able[rank % len(able)] for rank, able in readers.items()}
    mine: list = []
    try:
        world.together(lambda: mine.extend(_Old(part, opened) for part in here if readers[part.rank] == world.rank))
        step = min(row[0] for row in world.gather([min([one.newest_step for one in mine], default=float("inf"))]))
        if step < 0 or step == float("inf"):
            raise of_all_ranks(
                ValueError(
                    f"The state of {ranks} ranks in {folder} has no step to go on from: start anew with fresh=True."
                )
            )
        told: dict = {}
        for of_rank in world.gather_objects(
            world.together(lambda: {one.part.rank: one.begin(int(step)) for one in mine})
        ):
            told.update(of_rank)
        return _Reading(world, folder, readers, told, {one.part.rank: one for one in mine}, pieces).carried()
    finally:
        for one in mine:
            one.close()


@dataclasses.dataclass
class _Chunk:
    """Elements of an old rank's tensor that ranks send each other."""

    old: int
    tensor: int
    first: int  # of the tensor's elements
    place: boxes.Range


def _chunks(told: dict) -> list:
    """Returns the chunks in which old states are sent, in an order that is the same on all ranks."""
    found, seen = [], set()
    for old in sorted(told):
        for i, place in enumerate(told[old]["part"].ranges):
            if place in seen:  # several ranks have it
                continue
            seen.add(place)
            for begin in range(place.begin, place.end, _AT_ONCE):
                part = dataclasses.replace(place, begin=begin, end=min(begin + _AT_ONCE, place.end))
                found.append(_Chunk(old, i, begin - place.begin, part))
    return found


class _Reading:
    def __init__(self, world, folder: str, readers: dict, told: dict, mine: dict, pieces: list):
        self._world, self._readers, self._told, self._mine, self._pieces = world, readers, told, mine, pieces
        self._arrays = world.together(lambda: _room(folder, pieces))
        self._copied, self._updates = dict.fromkeys(self._arrays, 0), dict.fromkeys(self._arrays, 0)
        self._of_name: dict = {}
        for piece in pieces:
            self._of_name.setdefault(piece.place.name, []).append(piece)

    def carried(self) -> Carried:
        chunks = _chunks(self._told)
        takes = [any(boxes.overlap(chunk.place, piece.place) for piece in self._of(chunk)) for chunk in chunks]
        of_ranks = self._world.gather_objects(bytes(takes))
        for number, chunk in enumerate(chunks):
            source = self._readers[chunk.old]
            targets = [rank for rank, found in enumerate(of_ranks) if found[number]]
            if self._world.rank == source and targets:
                values = self._mine[chunk.old].read(chunk.tensor, chunk.first, chunk.place.count)
            elif self._world.rank in targets:
                values = torch.empty(_ARRAYS, chunk.place.count)
            else:
                continue
            self._world.pass_on(values, source, targets)
            if takes[number]:
                self._take(chunk, values)
        self._world.together(self._check)
        positions = [about["position"] for about in self._told.values() if about["position"] is not None]
        newest = max(positions, key=lambda one: one[1])
        return Carried(_engine.Position(*newest), self._arrays, self._updates, self._told[0]["program"])

    def _of(self, chunk: _Chunk) -> list:
        found = self._of_name.get(chunk.place.name, ())
        return [piece for piece in found if piece.place.shape == chunk.place.shape]

    def _take(self, chunk: _Chunk, values) -> None:
        updates = self._told[chunk.old]["updates"][chunk.tensor]
        for piece in self._of(chunk):
            key = id(piece.tensor)
            counts = [boxes.copy(chunk.place, one, piece.place, to) for one, to in zip(values, self._arrays[key])]
            self._copied[key] += counts[0]
            self._updates[key] = max(self._updates[key], updates if counts[0] else 0)

    def _check(self) -> None:
        for piece in self._pieces:
            if self._copied[id(piece.tensor)] < piece.place.count:
                raise ValueError(
                    f"The state in path lacks elements of {piece.place.name} with the shape "
                    f"{piece.place.shape}, as it is of another model: start from the same one, "
                    "or choose another path."
                )


def _room(folder: str, pieces: list) -> dict:
    """Memory for the state of the pieces, by their tensors' ids."""
    if not pieces:
        return {}
    sizes = [piece.place.count for piece in pieces for _ in range(_ARRAYS)]
    memory = memory_of_file(folder, sum(padded(4 * size) for size in sizes))
    like = [torch.empty(size, device="meta") for size in sizes]
    arrays = list(views(memory, like))
    return {id(piece.tensor): arrays[_ARRAYS * i : _ARRAYS * (i + 1)] for i, piece in enumerate(pieces)}
