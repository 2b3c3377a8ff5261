"""Ranges of a parameter as boxes of its elements, by which the state of one layout becomes that of another. Used by
parts.py, carry.py and what reads states of other layouts."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class Range:
    """Elements ``begin`` to ``end`` of a dense box of a parameter. ``offset`` and ``size``: of the box in the
    parameter, of shape ``shape``; ``order``: its dimensions as they lie in memory, the outermost first."""

    name: str
    shape: tuple
    offset: tuple
    size: tuple
    order: tuple
    begin: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.begin

    def as_json(self) -> dict:
        entries = dataclasses.asdict(self).items()
        return {key: list(value) if isinstance(value, tuple) else value for key, value in entries}


def range_of(found) -> Range:
    """Reads a range from JSON. Raises ValueError for anything else."""
    try:
        lists = {key: tuple(map(_whole, found[key])) for key in ("shape", "offset", "size", "order")}
        one = Range(name=found["name"], begin=_whole(found["begin"]), end=_whole(found["end"]), **lists)
        dims = range(len(one.shape))
        fits = (
            isinstance(one.name, str)
            and all(len(of) == len(one.shape) for of in lists.values())
            and sorted(one.order) == list(dims)
            and all(one.offset[i] + one.size[i] <= one.shape[i] for i in dims)
            and one.begin < one.end <= math.prod(one.size)
        )
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError("it describes a range of a parameter that cannot be")
    return one


def _whole(value) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


def _boxes(begin: int, end: int, size: tuple) -> list:
    """Elements ``begin`` to ``end`` of a dense tensor, cut into boxes: pairs of starts and sizes, in order."""
    if begin >= end:
        return []
    if not size:
        return [((), ())]
    row = math.prod(size[1:])

    def of_row(number: int, first: int, last: int) -> list:
        return [((number, *start), (1, *part)) for start, part in _boxes(first, last, size[1:])]

    whole, behind = -(-begin // row), end // row
    if whole > behind:  # within a row
        return of_row(behind, begin - behind * row, end - behind * row)
    rows = [((whole, *[0] * (len(size) - 1)), (behind - whole, *size[1:]))] if whole < behind else []
    head = of_row(whole - 1, begin - (whole - 1) * row, row) if begin % row else []
    return head + rows + of_row(behind, 0, end - behind * row)


def _places(one: Range) -> list:
    """The range's boxes: where each begins in the parameter, and its size as it lies in memory."""
    in_memory = tuple(one.size[i] for i in one.order)
    back = [one.order.index(i) for i in range(len(one.order))]
    return [
        (tuple(start[back[i]] + one.offset[i] for i in range(len(back))), size)
        for start, size in _boxes(one.begin, one.end, in_memory)
    ]


def _views(one: Range, flat) -> list:
    """The range's boxes: where each begins in the parameter, and a view of its elements in ``flat``."""
    back = [one.order.index(i) for i in range(len(one.order))]
    found, at = [], 0
    for place, size in _places(one):
        count = math.prod(size)
        view = flat[at : at + count].view(size)
        found.append((place, view.permute(back) if back else view))
        at += count
    return found


def overlap(one: Range, other: Range) -> bool:
    """Whether two ranges of one parameter share elements."""
    boxes = [
        [(place, [size[of.order.index(i)] for i in range(len(size))]) for place, size in _places(of)]
        for of in (one, other)
    ]
    return any(
        all(max(a, b) < min(a + m, b + n) for a, m, b, n in zip(here, size, there, other_size))
        for here, size in boxes[0]
        for there, other_size in boxes[1]
    )


def copy(source: Range, values, target: Range, to) -> int:
    """Copies the elements that two ranges of one parameter share, from ``values`` to ``to``, which are flat. Returns
    how many."""
    copied = 0
    for here, view in _views(source, values):
        for there, place in _views(target, to):
            begins = [max(a, b) for a, b in zip(here, there)]
            ends = [min(a + m, b + n) for a, m, b, n in zip(here, view.shape, there, place.shape)]
            if all(begin < end for begin, end in zip(begins, ends)):
                part = view[tuple(slice(begin - a, end - a) for begin, end, a in zip(begins, ends, here))]
                place[tuple(slice(begin - b, end - b) for begin, end, b in zip(begins, ends, there))].copy_(part)
                copied += part.numel()
    return copied


def dense(tensor, name: str) -> tuple:
    """A flat view of a tensor's elements as they lie in memory, and the order of its dimensions there."""
    order = tuple(range(tensor.dim()))
    if not tensor.is_contiguous():
        order = tuple(sorted(order, key=lambda i: -tensor.stride(i)))
    view = tensor.permute(order) if tensor.dim() else tensor
    if not view.is_contiguous():
        raise ValueError(
            f"The elements of {name} do not lie side by side: make it contiguous before the optimizer's first use."
        )
    return view.view(-1), order


def flat_like(tensor, order: tuple):
    """The elements of a tensor in this order of its dimensions."""
    return (tensor.permute(order) if tensor.dim() else tensor).reshape(-1)
