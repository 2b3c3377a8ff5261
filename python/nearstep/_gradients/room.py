"""Measures how much of a GPU's memory sums of gradients may take: what a pass without them leaves. Used by sums.py and
_streaming/streaming.py."""

from __future__ import annotations

import dataclasses
import time

import torch


@dataclasses.dataclass
class Memory:
    """Bytes of PyTorch's memory on the GPU, and of what the GPU has free beside it."""

    allocated: int
    most_allocated: int  # at once
    reserved: int
    most_reserved: int
    free: int
    active: int = 0  # allocated, or read by the GPU until it is free


def memory_of(device: torch.device) -> Memory:
    stats = torch.cuda.memory.memory_stats_as_nested_dict(device)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return Memory(
        allocated["current"],
        allocated["peak"],
        reserved["current"],
        reserved["peak"],
        torch.cuda.mem_get_info(device)[0],
        stats["active_bytes"]["all"]["current"],
    )


def capacity_of(now: Memory, limit: float | None, engine: int) -> float:
    """Bytes that PyTorch may take. ``limit``: for the process, or None; ``engine``: bytes of the engine's own."""
    all_of_it = now.reserved + now.free
    return all_of_it if limit is None else min(all_of_it, limit - engine)


_SPARE_FOR_S = 0.01  # spare() asks CUDA as often, which takes too long for each gradient
_SPARE_SHARE = (
    4  # one part in so many of what backward has set free: the next forward takes it when that part is free again
)


class Room:
    """``measure`` returns a Memory; its peaks are those since this object was made. ``limit``: bytes that the process
    may take, or None; ``engine``: bytes of the engine's own."""

    def __init__(self, measure, limit: float | None = None, engine: int = 0):
        self._measure, self._limit, self._engine = measure, limit, engine
        self._most = 0  # that was allocated without gradients
        self._seen = 0  # the most that see() saw allocated
        self._pass = 0  # what a pass takes on top of what is there between two passes
        self._before = 0  # what was allocated before the last layer's forward
        self._on_the_way = 0
        self._spare = (0.0, 0)  # until when, and bytes

    def see(self, held: int) -> None:
        """A gradient of the first pass has come; those that came take ``held`` bytes."""
        now = self._measure()
        first = 0 if self._seen else now.most_allocated  # of forward
        self._seen = max(self._seen, first, now.allocated)
        self._most = max(self._most, first, now.allocated - held)

    def _capacity(self, now: Memory) -> float:
        return capacity_of(now, self._limit, self._engine)

    def for_sums(self, held: int, wanted: int, on_the_way: int) -> int:
        """Bytes for sums after the first pass, whose gradients take ``held`` bytes. If not all ``wanted`` ones fit,
        some go to host memory, and ``on_the_way`` bytes are needed for that. Raises ValueError if the limit holds no
        pass."""
        now = self._measure()
        between = max(0, now.most_allocated - self._seen)  # two gradients
        lost = now.most_reserved - now.most_allocated  # between tensors
        needed = self._most + between + lost
        self._pass = needed - (now.allocated - held)
        room = self._capacity(now) - needed
        if room >= wanted:
            return int(room)
        self._on_the_way = on_the_way
        if self._limit is not None and room < on_the_way and self._limit - self._engine < needed + on_the_way:
            raise ValueError(
                f"gpu_memory_gb={self._limit / 1e9:.3g} is too small: a backward pass takes "
                f"{(needed + self._engine) / 1e9:.3g} GB without sums of gradients, and "
                f"sums on their way to host memory and back {on_the_way / 1e9:.3g} GB. Give more than "
                f"{(needed + self._engine + on_the_way) / 1e9:.3g} GB, or fewer "
                "tokens at a time."
            )
        return max(0, int(room - on_the_way))

    def spare(self) -> int:
        """Bytes that are free during a backward pass, for gradients on their way to host memory."""
        until, spare = self._spare
        if time.monotonic() > until:
            now = self._measure()
            spare = max(0, int(self._capacity(now) - now.active) // _SPARE_SHARE)
            self._spare = (time.monotonic() + _SPARE_FOR_S, spare)
        return spare

    def missing(self, begins: bool) -> int:
        """Bytes that a later pass lacks, before the forward of one of its layers; ``begins``: of the first one."""
        now = self._measure()
        grown = max(0, now.allocated - self._before)  # by the last layer, of which the next one may take as much
        self._before = now.allocated
        needed = self._pass + self._on_the_way if begins else grown
        return int(now.allocated + needed - self._capacity(now))
