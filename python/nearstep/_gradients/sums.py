"""Holds the gradients of a step until they leave: on the GPU, or, layers for which it has no room, in pinned host
memory. Used by intake.py."""

from __future__ import annotations

import contextlib
import sys

import torch

from .._pinned import padded
from .host_sums import HostSum, HostSums, add, bytes_of_sums, bytes_of_waiting
from .lent import Lent
from .room import Room

_WAITING_PASSES = (
    2  # whose gradients may wait for the host: one that finds no room makes backward wait for all that are on their way
)
_STREAMED_SHARE = 0.5  # of a pass's gradients, which may wait for the host: streamed models have few passes


class Sums:
    """Gradients are added in the order in which they come, wherever they are."""

    def __init__(self, layout, is_streamed: bool, dtype: torch.dtype, is_host_limited: bool):
        """``is_streamed``: sums of all layers do not fit the GPU; ``dtype``: of sums; ``is_host_limited``: gradients
        do not wait in host memory, where sums are in any case, some of them in memory that the engine lends."""
        self._dtype, self._is_host_limited = dtype, is_host_limited
        self._streamed_share = 0 if is_host_limited else _STREAMED_SHARE
        self._params, self._blocks, self._block_of, self.is_streamed = (
            layout.params,
            layout.blocks,
            layout.block_of,
            is_streamed,
        )
        self._encodes = False
        self._host: HostSums | None = None
        self._lent = Lent([], [])
        self._room: Room | None = None  # None: everything stays where it comes
        self._is_decided = False
        self._is_first_rank = False
        self._on_host = [False] * len(self._blocks)
        self.begin_step()

    def host_bytes(self, conductor, device: torch.device) -> int:
        """Bytes of host memory that sums take if a step has several backward passes and layers are streamed, beside
        what the engine lends."""
        if not (self.is_streamed and (device.type == "cuda" or self._is_host_limited)):
            return 0
        if self._is_host_limited:
            size = self._dtype.itemsize
            sizes = [{i: padded(size * self._params[i].numel()) for i in block.tensors} for block in self._blocks]
            self._lent = Lent(sizes, conductor.lent_ends())
        waiting = bytes_of_waiting(self._params, self._streamed_share)
        return bytes_of_sums(self._params, self._dtype) - self._lent.bytes + waiting

    @property
    def bytes_on_the_way(self) -> int:
        return self._host.bytes_on_the_way if self._host.is_reserved else 0

    def open(self, conductor, device: torch.device, encodes: bool, room: Room | None, passes: int) -> None:
        """``passes``: backward passes of a step; 0: not known."""
        self._encodes, self._is_first_rank = encodes, conductor.rank == 0
        if self.is_streamed:
            is_on_host = device.type == "cuda" or (self._is_host_limited and passes > 1)
            self._on_host = [is_on_host] * len(self._blocks)
        else:
            self._room = room
        waiting = min(_WAITING_PASSES, passes - 1) if passes > 1 else _WAITING_PASSES
        self._host = HostSums(
            conductor,
            device,
            self._params,
            self._blocks,
            self._dtype,
            encodes,
            self._streamed_share if self.is_streamed else waiting,
            self._spare,
            self._lent,
        )
        if passes > 1:  # taken beside the first forward, in backward's order
            self._reserve()

    def _reserve(self) -> None:
        self._host.reserve(block for block in reversed(range(len(self._blocks))) if self._on_host[block])

    def begin_step(self) -> None:
        if self._host is not None:
            self._host.begin_step()
        self.values: list = [None] * len(self._params)  # tensors, also the program's own, or what is in host memory

    def close(self) -> None:
        if self._host is not None:
            self._host.close()

    # --- One gradient ---

    def here(self):
        """Pairs of a parameter's number and its gradient, for those that are not in host memory."""
        return [(i, value) for i, value in enumerate(self.values) if isinstance(value, torch.Tensor)]

    def add(self, i: int, gradient, to_come: int | None) -> None:
        """``to_come``: backward passes of the step after this one; None: not known."""
        have, block, is_last = self.values[i], self._block_of[i], to_come == 0
        if self._room is not None and not self._is_decided:
            if have is not None:
                self._decide()
                have = self.values[i]
            elif not is_last:
                self._room.see(self._bytes_here() + gradient.nbytes)
        if isinstance(have, HostSum):
            self.values[i] = self._host.take(have, gradient) if is_last else self._host.add(have, gradient, to_come)
        else:
            sums = gradient if have is None else add(have, gradient, self._dtype, self._encodes)
            if self._on_host[block] and not is_last:
                if not self._host.is_reserved:  # the number of passes was not known
                    self._reserve()
                sums = self._host.put(block, i, sums)
            self.values[i] = sums

    @contextlib.contextmanager
    def leaving(self, block: int):
        """Yields the block's gradients, which are this object's no longer; in a stream in which they are there."""
        tensors = self._blocks[block].tensors
        values = [self.values[i] for i in tensors]
        for i in tensors:
            self.values[i] = None
        if not self._on_host[block]:
            yield values
            return
        values = [self._host.take(value) if isinstance(value, HostSum) else value for value in values]
        with self._host.joined(values):
            yield values

    def left(self, block: int, work: int) -> None:
        """``work``: the engine's number of what reads the block's gradients."""
        if self._on_host[block]:
            self._host.left(block, work)

    # --- Room ---

    def make_room(self, begins: bool) -> None:
        """Before a layer's forward in a pass after a step's first one; ``begins``: of the pass's first layer."""
        if self._room is None:
            return
        if not self._is_decided:
            if begins:
                self._decide()
            return
        missing, moved = self._room.missing(begins), []
        for block in range(len(self._blocks)):
            if missing > 0 and not self._on_host[block]:
                missing -= self._move(block)
                moved.append(block)
        if moved and self._is_first_rank:
            print(
                f"nearstep: GPU memory is short: sums of gradients of {len(moved)} more of {len(self._blocks)} "
                "blocks wait in host memory from here on",
                file=sys.stderr,
            )

    def _spare(self) -> int:
        return 0 if self._room is None else self._room.spare()

    def _bytes_here(self) -> int:
        return sum(value.nbytes for _, value in self.here())

    def _move(self, block: int) -> int:
        """The block's sums are in host memory from here on. Returns the bytes that this frees."""
        self._on_host[block] = True
        freed = 0
        for i in self._blocks[block].tensors:
            value = self.values[i]
            if isinstance(value, torch.Tensor):
                freed += value.nbytes
                self.values[i] = self._host.put(block, i, value)
        return freed

    def _decide(self) -> None:
        """After the first pass. Blocks whose sums stay on the GPU are spread over the model, so that backward has work
        while others are on their way."""
        sizes = [self._host.bytes_of(block) for block in range(len(self._blocks))]
        wanted = sum(sizes)
        room = self._room.for_sums(self._bytes_here(), wanted, self._host.bytes_on_the_way)
        self._is_decided = True
        kept, seen, leaving = 0, 0, []
        for block, size in enumerate(sizes):
            seen += size
            if room < wanted and kept + size > room * seen / wanted:
                leaving.append(block)
            else:
                kept += size
        self._host.reserve(leaving)  # while the first ones move
        for block in leaving:
            self._move(block)
        if self._is_first_rank:
            gradients = sum(self._params[i].nbytes for block in leaving for i in self._blocks[block].tensors)
            self._say(kept, wanted - kept, gradients, room)

    def _say(self, kept: int, moved: int, gradients: int, room: int) -> None:
        """``gradients``: bytes of a pass's gradients whose sums take ``moved`` bytes."""
        line = f"nearstep: sums of gradients take {kept / 1e9:.3g} GB of GPU memory"
        if moved:
            saved = gradients / max(moved, 1e9)
            line += (
                f" and {moved / 1e9:.3g} GB of host memory; each GB more of GPU memory would save copies of "
                f"{saved:.3g} GB of gradients to the host, which adds them, per backward pass"
            )
        else:
            line += f"; a pass would fit with {(room - kept) / 1e9:.3g} GB less"
        print(line, file=sys.stderr)
