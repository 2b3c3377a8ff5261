"""A model's parameters as parameter groups, and its modules as blocks of the parameter vector."""

from __future__ import annotations

import dataclasses

import torch

# A block has at least one tile of the engine, so that each has something to send.
_LEAST_ELEMENTS = 65536


class Groups(list):
    """Parameter groups that know their module."""

    def __init__(self, groups, module):
        super().__init__(groups)
        self.module = module


def groups(module: torch.nn.Module, weight_decay: float = 0.01, **settings) -> Groups:
    """The module's parameters as two groups, as usual for GPTs and BERTs: matrices, with ``weight_decay``, and tensors
    with fewer than two dimensions (biases, scales of norms), without. ``settings`` apply to both. Frozen parameters
    (``requires_grad=False``) are left out."""
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    matrices = [p for _, p in trained if p.dim() >= 2]
    others = [p for _, p in trained if p.dim() < 2]
    both = [{"params": matrices, "weight_decay": weight_decay, **settings}, {"params": others, "weight_decay": 0.0, **settings}]
    return Groups([group for group in both if group["params"]], module)


@dataclasses.dataclass
class Block:
    """Neighbouring tensors of the parameter vector, sent and received together."""

    tensors: list  # indices of parameters
    elements: int


def _is_composite(module) -> bool:
    return next(module.children(), None) is not None


def _is_list(module) -> bool:
    if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        return len(module) > 1
    return isinstance(module, torch.nn.Sequential) and sum(map(_is_composite, module.children())) > 1


def blocks_of(module: torch.nn.Module, index: dict) -> tuple[list[Block], list]:
    """Cuts the module into its layers, in the order of their creation. Returns the blocks, and pairs of a module and
    the parameters that its own forward reads. ``index``: the number of each trained parameter, by its id."""
    blocks: list[Block] = []
    reads = []
    seen: set[int] = set()

    def add(owner, parameters) -> None:
        of_owner = [index[id(p)] for p in parameters if id(p) in index]
        if of_owner:
            reads.append((owner, of_owner))
        mine = {index[id(p)]: p.numel() for p in owner.parameters() if index.get(id(p)) in of_owner and id(p) not in seen}
        seen.update(id(p) for p in owner.parameters() if index.get(id(p)) in mine)
        if not mine:
            return  # all tied to earlier parameters
        elements = sum(mine.values())
        if blocks and min(blocks[-1].elements, elements) < _LEAST_ELEMENTS:
            blocks[-1].tensors += mine
            blocks[-1].elements += elements
        else:
            blocks.append(Block(list(mine), elements))

    def walk(owner) -> None:
        add(owner, owner.parameters(recurse=False))
        for child in owner.children():
            if _is_list(child) or any(_is_list(inner) for inner in child.modules()):
                walk(child)
            else:
                add(child, child.parameters())

    walk(module)
    return blocks, reads
