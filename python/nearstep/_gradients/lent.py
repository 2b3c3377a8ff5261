"""Finds places for sums of gradients in memory that the engine lends until they leave: where it will have the gradients
of the next update. Used by sums.py and host_sums.py."""

from __future__ import annotations

from .._pinned import ALIGNMENT


class Lent:
    """Sums leave last block first, and the engine overwrites the memory from its end as they do. A sum is placed where
    that comes only to what has left: a block's sums lie before the gradients of the blocks behind it."""

    def __init__(self, sizes: list, ends: list):
        """``sizes``: of each block, the bytes of its parameters' sums by number; ``ends``: see engine::Run."""
        self._places: dict = {}  # number of the memory, and where in it
        self._memory: list = []
        self.bytes = 0
        free = [of_blocks[-1] for of_blocks in ends]
        for block in reversed(range(len(sizes) if ends else 0)):
            for i, size in sorted(sizes[block].items(), key=lambda one: -one[1]):
                begins = [min(top, of_blocks[block]) - size for top, of_blocks in zip(free, ends)]
                number = max(range(len(begins)), key=begins.__getitem__)
                begin = begins[number] // ALIGNMENT * ALIGNMENT
                if begin >= 0:
                    self._places[i] = number, begin
                    free[number] = begin
                    self.bytes += size

    def __contains__(self, i: int) -> bool:
        return i in self._places

    def open(self, memory: list) -> None:
        """``memory``: the engine's."""
        self._memory = memory

    def memory(self, i: int, size: int):
        number, begin = self._places[i]
        return self._memory[number][begin : begin + size]

    def close(self) -> None:
        self._memory = []
