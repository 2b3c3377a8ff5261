"""Which elements of the parameters a rank holds the state of, and how the others get their new values. Used by
optimizer.py and waits.py.

A tensor of a rank (a DTensor's local one, or a plain parameter) is held alike by the ranks of some process groups, or
by this one alone. Those that hold it alike divide it: the tensors of a layer lie side by side in a bucket, of which
each rank has a piece."""

from __future__ import annotations

import collections
import dataclasses
import gc
import math

import torch
import torch.distributed as dist

from .. import _engine
from .._torch_private import compute_local_shape_and_global_offset, foreach_norm
from .boxes import Range, dense, flat_like
from .world import World, all_gather, leave_group, of_all_ranks

try:
    from torch.distributed.tensor import DTensor, Replicate
except ImportError:  # a PyTorch without torch.distributed
    DTensor = Replicate = None


def is_sharded(p) -> bool:
    return DTensor is not None and isinstance(p, DTensor)


def local(tensor):
    """Returns this rank's part of a parameter or of its gradient."""
    return tensor._local_tensor if is_sharded(tensor) else tensor.detach()


@dataclasses.dataclass
class Piece:
    """Elements of a parameter that this rank updates: ``place`` says which; the slice of the local tensor's flat view
    begins at ``begin``."""

    number: int  # of the parameter
    place: Range
    begin: int
    tensor: torch.nn.Parameter  # the elements themselves
    holders: int = 1  # ranks that update these elements, each for itself, where the parameter's mesh lacks ranks


class Bucket:
    """Tensors of a layer that the ranks of ``groups`` hold alike; the outermost group first. ``block``: the layer's;
    ``numbers``: of the parameters."""

    def __init__(self, key: tuple, groups: list, index: int, count: int, block: int):
        self.key, self.groups, self.index, self.count, self.block = key, groups, index, count, block
        self.numbers: list = []
        self.ends: list = []  # of the parameters, in elements
        self.pieces: list = []  # this rank's

    @property
    def device(self) -> torch.device:
        return self.key[-1]

    @property
    def elements(self) -> int:
        return self.ends[-1]

    @property
    def share(self) -> int:
        """Elements of a rank; the last ranks may have fewer."""
        return -(-self.elements // self.count)

    def mine(self) -> tuple:
        return min(self.index * self.share, self.elements), min((self.index + 1) * self.share, self.elements)

    def gather(self, flats: list) -> None:
        """Each rank's elements become those of all. ``flats``: of the parameters, in the order of the numbers."""
        begin, end = self.mine()
        mine = torch.zeros(self.share, dtype=flats[0].dtype, device=flats[0].device)
        at = 0
        for flat, until in zip(flats, self.ends):
            first, last = max(begin, at), min(end, until)
            if first < last:
                mine[first - begin : last - begin].copy_(flat[first - at : last - at])
            at = until
        for group in reversed(self.groups):
            whole = mine.new_empty(mine.numel() * dist.get_world_size(group))
            all_gather(whole, mine, group)
            mine = whole
        at = 0
        for flat, until in zip(flats, self.ends):
            flat.copy_(mine[at:until])
            at = until

    def mean(self, gradients: list, flats: list):
        """The mean over all ranks of this rank's elements of gradients, added in fp32. None among ``gradients``:
        zeros."""
        whole = torch.zeros(self.share * self.count, dtype=torch.float32, device=flats[0].device)
        at = 0
        for gradient, until in zip(gradients, self.ends):
            if gradient is not None:
                whole[at:until].copy_(gradient)
            at = until
        dist.all_reduce(whole, group=World.group(self.device))
        begin, end = self.mine()
        return whole[begin:end].div_(self.count)


class Parts:
    """``layout``: of all parameters, see lay_out(); ``world``: see World."""

    def __init__(self, layout, world):
        self.layout, self._world = layout, world
        self.params, self.names = layout.params, layout.names
        self._orders: list = [()] * len(self.params)
        self.buckets: list = []
        for number in range(len(layout.blocks)):
            self._divide(number)
        self.pieces = sorted(
            (piece for bucket in self.buckets for piece in bucket.pieces), key=lambda piece: piece.number
        )
        self._own_groups: list = []
        self._is_reduced: set | None = None  # ids of the parameters whose gradients DistributedDataParallel averages

    # --- Who holds what ---

    def _holders(self, p) -> tuple:
        """Returns a key that tells tensors which the same ranks hold from others; the groups of these ranks, this
        rank's place among them, and their number."""
        if not is_sharded(p):
            return ("all",), [dist.group.WORLD] if self._world.is_several else [], self._world.rank, self._world.size
        mesh, here = p.device_mesh, p.device_mesh.get_coordinate()
        dims = [i for i, placement in enumerate(p.placements) if placement.is_replicate() and mesh.size(i) > 1]
        index, count = 0, 1
        for i in dims if here is not None else ():
            index, count = index * mesh.size(i) + here[i], count * mesh.size(i)
        return (mesh, tuple(dims)), [mesh.get_group(i) for i in dims], index, count

    def _divide(self, block: int) -> None:
        buckets: dict = {}
        for number in self.layout.blocks[block].tensors:
            p = self.params[number]
            flat, self._orders[number] = dense(local(p), self.names[number])
            key, groups, index, count = self._holders(p)
            key = (*key, flat.dtype, flat.device)
            bucket = buckets.setdefault(key, Bucket(key, groups, index, count, block))
            bucket.numbers.append(number)
            bucket.ends.append((bucket.ends[-1] if bucket.ends else 0) + flat.numel())
        for bucket in buckets.values():
            if bucket.elements:
                self.buckets.append(bucket)
                self._take_pieces(bucket)

    def _take_pieces(self, bucket: Bucket) -> None:
        mine, at = bucket.mine(), 0
        for number, until in zip(bucket.numbers, bucket.ends):
            begin, end = max(mine[0], at) - at, min(mine[1], until) - at
            if begin < end:
                tensor = torch.nn.Parameter(self.flat(number)[begin:end])
                bucket.pieces.append(Piece(number, self._range(number, begin, end), begin, tensor))
            at = until

    def _range(self, number: int, begin: int, end: int) -> Range:
        p, here = self.params[number], local(self.params[number])
        size, offset = tuple(here.shape), (0,) * here.dim()
        if is_sharded(p):
            size_as_told, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
            if tuple(size_as_told) != size:
                raise ValueError(
                    f"{self.names[number]} is divided over the ranks in a way that PyTorch does not "
                    f"describe ({p.placements}): use another."
                )
        return Range(self.names[number], tuple(p.shape), tuple(offset), size, self._orders[number], begin, end)

    def flat(self, number: int):
        """The local tensor's elements as they lie in memory."""
        return flat_like(local(self.params[number]), self._orders[number])

    def refresh(self) -> None:
        """PyTorch may have given a parameter other memory, as fully_shard() does after module.to() or
        load_state_dict(assign=True)."""
        for piece in self.pieces:
            now = self.flat(piece.number)[piece.begin : piece.begin + piece.place.count]
            if now.data_ptr() != piece.tensor.data_ptr():
                piece.tensor.data = now

    def enter_groups(self) -> None:
        """Makes process groups of the optimizer's own, in which values are gathered from here on. Collective."""

        def ranks_of(bucket):
            return [(bucket.device.type, tuple(dist.get_process_group_ranks(group))) for group in bucket.groups]

        groups = self._world.own_groups({one for bucket in self.buckets for one in ranks_of(bucket)})
        for bucket in self.buckets:
            bucket.groups = [groups[one] for one in ranks_of(bucket)]
        self._own_groups = list(groups.values())

    def leave_groups(self) -> None:
        for group in self._own_groups:
            leave_group(group)

    def alike(self) -> list:
        """Returns name, shape and format of the parameters that all ranks hold whole, which must be the same on all."""
        return [(name, tuple(p.shape), str(p.dtype)) for name, p in zip(self.names, self.params) if not is_sharded(p)]

    def count_holders(self) -> None:
        """Ranks tell each other which elements they hold, if there may be copies that no mesh knows."""
        places = [
            repr(piece.place)
            for piece in self.pieces
            if is_sharded(self.params[piece.number]) and self.params[piece.number].device_mesh.size() < self._world.size
        ]
        of_ranks = self._world.gather_objects(places)
        counts = collections.Counter(place for of_rank in of_ranks for place in of_rank)
        for piece in self.pieces:
            piece.holders = max(counts[repr(piece.place)], 1)

    # --- Values ---

    @torch.no_grad()
    def share_start(self) -> None:
        """All ranks begin with the first rank's values, where they hold parameters alike."""
        for bucket in self.buckets:
            if bucket.key[0] == "all" and bucket.count > 1:
                for number in bucket.numbers:
                    dist.broadcast(self.flat(number), 0, group=self._world.group(bucket.device))
        self._refuse_other_copies()

    def _refuse_other_copies(self) -> None:
        """Elements of one name that several ranks hold, by meshes that do not know each other, are copies: their values
        are the same. Otherwise they are different parameters, of which a restart would take one for the other."""
        mine = {piece.place: _digest(piece.tensor) for piece in self.pieces if piece.holders > 1}
        seen: dict = {}
        for rank, found in enumerate(self._world.gather_objects(mine)):
            for place, digest in found.items():
                first, of_first = seen.setdefault(place, (rank, digest))
                if digest != of_first:
                    raise of_all_ranks(
                        ValueError(
                            f"Ranks {first} and {rank} have {place.name} with different values, on meshes of their "
                            "own, as stages of a pipeline whose modules have the same names: give the modules the "
                            "names that they have in the whole model, or let these ranks begin with the same values."
                        )
                    )

    @torch.no_grad()
    def gather(self) -> None:
        """Gathers the updated elements on all ranks that hold them."""
        for bucket in self.buckets:
            if bucket.count > 1:
                bucket.gather([self.flat(number) for number in bucket.numbers])

    # --- Gradients ---

    def present(self) -> list:
        return [p.grad is not None for p in self.params]

    def gradients(self, present: list) -> list:
        """Returns the gradient of each piece, averaged over the ranks where they average it; None if no rank has one.
        ``present``: whether any rank has one of the parameter."""
        whole: dict = {}
        for number, p in enumerate(self.params):
            if present[number]:
                whole[number] = None if p.grad is None else flat_like(local(self._as_placed(p)), self._orders[number])
        found: dict = {}
        for bucket in self.buckets:
            if self._averages(bucket) and any(number in whole for number in bucket.numbers):
                mean = bucket.mean(
                    [whole.get(number) for number in bucket.numbers], [self.flat(number) for number in bucket.numbers]
                )
                at = 0
                for piece in bucket.pieces:
                    found[id(piece)] = mean[at : at + piece.place.count].to(piece.tensor.dtype)
                    at += piece.place.count
        return [
            found.get(id(piece), self._of_piece(piece, whole)) if piece.number in whole else None
            for piece in self.pieces
        ]

    @staticmethod
    def _of_piece(piece: Piece, whole: dict):
        gradient = whole.get(piece.number)
        if gradient is None:
            return torch.zeros_like(piece.tensor)
        return gradient[piece.begin : piece.begin + piece.place.count]

    def _as_placed(self, p):
        """The gradient, divided over the ranks as the parameter is."""
        if is_sharded(p.grad) and p.grad.placements != p.placements:
            return p.grad.redistribute(p.device_mesh, p.placements)
        return p.grad

    def _averages(self, bucket: Bucket) -> bool:
        if bucket.key[0] != "all" or bucket.count == 1:
            return False
        return not all(id(self.params[number]) in self._reduced() for number in bucket.numbers)

    @property
    def averages(self) -> bool:
        return any(map(self._averages, self.buckets))

    def _reduced(self) -> set:
        """A program may make its DistributedDataParallel when it likes, before the first step."""
        if self._is_reduced is None:
            self._is_reduced = self.find_reduced()
        return self._is_reduced

    def find_reduced(self) -> set:
        """Raises ValueError if only some of the ranks average the gradients of parameters that all ranks hold."""
        kind = torch.nn.parallel.DistributedDataParallel
        plain, found = {id(p) for p in self.params if not is_sharded(p)}, set()
        for one in gc.get_objects():
            ids = {id(p) for p in one.parameters()} & plain if issubclass(type(one), kind) else set()
            if ids and dist.get_world_size(one.process_group) < self._world.size:
                raise of_all_ranks(
                    ValueError(
                        "DistributedDataParallel averages over some of the ranks only, so that ranks have different "
                        "parameters of the same names: use fully_shard() with a mesh of two dimensions, or tensor "
                        "parallelism of PyTorch's, in its place."
                    )
                )
            found |= ids
        return found


def _digest(tensor) -> int:
    values = tensor.detach().cpu().contiguous()
    return _engine.digest(values.data_ptr(), values.numel() * values.element_size())


def squares(pieces: list, gradients: list) -> list:
    """Returns this rank's part of the sum of the squares of all elements."""
    here = [(piece.holders, gradient) for piece, gradient in zip(pieces, gradients) if gradient is not None]
    if not here:
        return [0.0]
    norms = torch.stack(foreach_norm([gradient for _, gradient in here], 2, dtype=torch.float32)).double()
    return [float((norms.square() / torch.tensor([holders for holders, _ in here], device=norms.device)).sum())]


def clip_factor(norm: float, clip_norm: float) -> float:
    """Returns the factor by which clipping multiplies gradients; NaN if the step shall not take place."""
    if not math.isfinite(norm):
        return math.nan
    return clip_norm / norm if clip_norm and norm > clip_norm else 1.0
