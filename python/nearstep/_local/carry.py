"""The state of one layout as that of another: each rank gets the elements that it holds from now on."""

from __future__ import annotations

import dataclasses
import os

import torch

from .. import _engine
from .._model import description
from . import boxes, folders, shadow
from .world import of_all_ranks

_ARRAYS = 3  # masters and both moments


@dataclasses.dataclass
class Carried:
    """``arrays``: of each piece, by its tensor's id; ``updates``: that it has had; ``program``: see
    Program.content()."""

    position: _engine.Position
    arrays: dict
    updates: dict
    program: bytes

    def of(self, own) -> CarriedTensors:
        """In the order of that optimizer's parameters."""
        return CarriedTensors(
            self.position,
            [self.arrays[id(p)] for p in own._params],
            [self.updates[id(p)] for p in own._params],
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

    def tell(self, conductor) -> None:
        """Before the engine begins, which reads the arrays until its start is over."""
        both = zip(self.arrays, self.updates)
        conductor.carry(
            self.position, [(one.data_ptr(), two.data_ptr(), updates) for (_, one, two), updates in both], self.program
        )


class _Old:
    """The state of an old rank, which this rank reads."""

    def __init__(self, optimizer, paths: list, part: folders.Part):
        self.part = part
        tensors = [(one.name, [one.count], group) for one, group in zip(part.ranges, part.groups)]
        self.conductor = None
        kind = shadow.NAME if optimizer._module is not None else "tensors"
        shapes = [(name, tuple(size)) for name, size, _ in tensors]
        if tensors:
            self.conductor = _engine.Conductor(
                settings=optimizer.settings_of_part([os.path.join(path, part.name) for path in paths]),
                tensors=tensors,
                tensors_of_blocks=[len(tensors)],
                dtype=part.dtype,
                model=description.of_tensors(kind, shapes, _engine.moments_of(optimizer._name)),
                granted_devices="",
                gpu=None,
                gradient_stream=0,
                fills_gpu=False,
                threads=0,
                processes_beside=1,
            )
            self.conductor.open(_engine.Wish(_engine.Wish.Kind.RESUME_IF_ANY, ""))

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

    def close(self) -> None:
        if self.conductor is not None:
            self.conductor.close()


def carry(optimizer, world, paths: list, layout: tuple, here: list, pieces: list) -> Carried:
    """Reads the old state at the step that all of its ranks have. ``here``: its parts that this rank sees."""
    sees = world.gather_objects([part.rank for part in here])
    readers = {old: [rank for rank in range(world.size) if old in sees[rank]] for old in range(layout[1])}
    readers = {old: ranks[old % len(ranks)] for old, ranks in readers.items()}
    mine: list = []
    try:
        world.together(
            lambda: mine.extend(_Old(optimizer, paths, part) for part in here if readers[part.rank] == world.rank)
        )
        step = min(row[0] for row in world.gather([min([old.newest_step for old in mine], default=float("inf"))]))
        if step < 0 or step == float("inf"):
            raise of_all_ranks(
                ValueError(
                    f"The state of {layout[1]} ranks in {paths[0]} has no step to go on from: "
                    f"start anew with fresh=True."
                )
            )
        told: dict = {}
        for of_rank in world.gather_objects(
            world.together(lambda: {old.part.rank: old.begin(int(step)) for old in mine})
        ):
            told.update(of_rank)
        return _read(world, readers, told, {old.part.rank: old for old in mine}, pieces)
    finally:
        for old in mine:
            old.close()


def _read(world, readers: dict, told: dict, mine: dict, pieces: list) -> Carried:
    arrays = {id(piece.tensor): [torch.zeros(piece.place.count) for _ in range(_ARRAYS)] for piece in pieces}
    copied, updates = dict.fromkeys(arrays, 0), {}
    of_name: dict = {}
    for piece in pieces:
        of_name.setdefault(piece.place.name, []).append(piece)
    seen: set = set()
    for old in sorted(told):
        for i, place in enumerate(told[old]["part"].ranges):
            if place in seen:  # several ranks have it
                continue
            seen.add(place)
            values = torch.empty(_ARRAYS, place.count)
            if old in mine:
                torch.stack(list(mine[old].conductor.read_state(i)), out=values)
            world.broadcast(values, readers[old])
            for piece in of_name.get(place.name, ()):
                if piece.place.shape != place.shape:
                    continue
                key = id(piece.tensor)
                counts = [boxes.copy(place, one, piece.place, to) for one, to in zip(values, arrays[key])]
                copied[key] += counts[0]
                updates[key] = max(updates.get(key, 0), told[old]["updates"][i])

    def check() -> None:
        for piece in pieces:
            if copied[id(piece.tensor)] < piece.place.count:
                raise ValueError(
                    f"The state in path lacks elements of {piece.place.name} with the shape "
                    f"{piece.place.shape}, as it is of another model: start from the same one, "
                    "or choose another path."
                )

    world.together(check)
    positions = [about["position"] for about in told.values() if about["position"] is not None]
    newest = max(positions, key=lambda one: one[1])
    return Carried(_engine.Position(*newest), arrays, updates, told[0]["program"])
