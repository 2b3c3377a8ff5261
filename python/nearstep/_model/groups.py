"""Divides a model's parameters into parameter groups, and its modules into blocks of the parameter vector. Used by most
of the package."""

from __future__ import annotations

import dataclasses
import itertools

import torch

from .._torch_private import DisableTorchFunctionSubclass, has_storage
from .composed import refuse_trained

# A block has at least one tile of the engine, so that each has something to send.
_LEAST_ELEMENTS = 65536
_MOST_OF_A_NAME = 1024

DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}  # names of the engine


_WRAPPERS = (
    "_orig_mod",
    "_checkpoint_wrapped_module",
)  # parts of names that torch.compile and checkpoint_wrapper() add


def plain_name(name: str) -> str:
    """The name that the parameter or module has without torch.compile and checkpoint_wrapper()."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def plain_module(module):
    """The module that torch.compile wraps; another module itself."""
    inner = getattr(module, "_modules", {})
    return inner["_orig_mod"] if "_orig_mod" in inner else module  # TorchScript's have no get()


class Groups(list):
    """Parameter groups that know their module."""

    def __init__(self, groups, module):
        super().__init__(groups)
        self.module = module


def check_formats(params: list, names: list) -> None:
    """Raises ValueError for a format that nearstep does not train, and for parameters that consist of others."""
    for p, name in zip(params, names):
        refuse_trained(name, p)
        if p.dtype not in DTYPES:
            raise ValueError(f"Parameter {name} is {p.dtype}: nearstep trains float32, bfloat16 and float16.")


def groups(module: torch.nn.Module, weight_decay: float = 0.01, **settings) -> Groups:
    """The module's parameters as two groups, as usual for GPTs and BERTs: matrices, with ``weight_decay``, and tensors
    with fewer than two dimensions (biases, scales of norms), without. ``settings`` apply to both. Frozen parameters
    (``requires_grad=False``) are left out."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"nearstep.groups() takes a module, not a {type(module).__name__}: pass tensors or groups of your own to "
            "the optimizer."
        )
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    trained = trained or list(module.named_parameters())  # all frozen: an optimizer that does nothing
    matrices = [p for _, p in trained if p.dim() >= 2]
    others = [p for _, p in trained if p.dim() < 2]
    both = [
        {"params": matrices, "weight_decay": weight_decay, **settings},
        {"params": others, "weight_decay": 0.0, **settings},
    ]
    return Groups([group for group in both if group["params"]], module)


def trained_of(params):
    """A module's trained parameters, or all of them if all are frozen; other things as they are."""
    if isinstance(params, torch.nn.Module):
        return [p for p in params.parameters() if p.requires_grad] or list(params.parameters())
    return params


def named(param_groups: list, module: torch.nn.Module | None) -> list:
    """Pairs of a name, the module's or else "group.place", and a parameter of the groups."""
    names = {} if module is None else {id(p): name for name, p in module.named_parameters()}
    return [
        (names.get(id(p), f"{number}.{place}"), p)
        for number, group in enumerate(param_groups)
        for place, p in enumerate(group["params"])
    ]


@dataclasses.dataclass
class Block:
    """Neighbouring tensors of the parameter vector, sent and received together."""

    tensors: list  # indices of parameters
    elements: int


def _is_composite(module) -> bool:
    return next(plain_module(module).children(), None) is not None


def _is_list(module) -> bool:
    if isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict)):
        return len(module) > 1
    return isinstance(module, torch.nn.Sequential) and sum(map(_is_composite, module.children())) > 1


def has_list(module) -> bool:
    """Whether it is or has a list of layers."""
    return any(map(_is_list, module.modules()))


def layers_of(module):
    """The entries of the outermost lists."""
    for child in module.children():
        if _is_list(module):
            yield child
        else:
            yield from layers_of(child)


def compiled_layers(module) -> dict:
    """The entry of a list that torch.compile() has compiled, by the ids of the modules inside it. A hook inside would
    cut its graph in two."""
    found: dict = {}
    for parent in filter(_is_list, module.modules()):
        for child in parent.children():
            if plain_module(child) is not child or getattr(child, "_compiled_call_impl", None) is not None:
                for inside in child.modules():
                    found.setdefault(id(inside), child)  # the outermost comes first
    return found


def _blocks_of(module: torch.nn.Module, index: dict) -> tuple[list[Block], list]:
    """Cuts the module into its layers, in the order of their creation. Returns the blocks, and pairs of a module and
    the parameters that its own forward reads. ``index``: the number of each trained parameter, by its id."""
    blocks: list[Block] = []
    reads = []
    seen: set[int] = set()

    def add(owner, parameters) -> None:
        of_owner = [index[id(p)] for p in parameters if id(p) in index]
        if of_owner:
            reads.append((owner, of_owner))
        mine = {
            index[id(p)]: p.numel() for p in owner.parameters() if index.get(id(p)) in of_owner and id(p) not in seen
        }
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
            if has_list(child):
                walk(child)
            else:
                add(child, child.parameters())

    walk(module)
    return blocks, reads


@dataclasses.dataclass
class Layout:
    """The trained parameters in the order of the parameter vector: that of the blocks."""

    params: list
    names: list  # the module's, else "group.place"
    group_of: list  # numbers of the parameters' groups
    dtype: torch.dtype  # of the vector
    blocks: list[Block]
    block_of: list  # numbers of the parameters' blocks
    reads: list  # a module, and the blocks and parameters that its own forward reads


def _refuse_shared_memory(params: list, names: list) -> None:
    """PyTorch's optimizers update such memory once for each parameter; the state has one master for each."""
    with DisableTorchFunctionSubclass():
        places = sorted(
            (p.data_ptr(), p.data_ptr() + p.numel() * p.element_size(), name)
            for p, name in zip(params, names)
            if has_storage(p) and p.is_contiguous() and p.device.type != "meta"
        )
    for (_, end, one), (begin, _, other) in itertools.pairwise(places):
        if 0 < begin < end:
            raise ValueError(
                f"{one} and {other} are two parameters of the same memory, as after p.data = q.data: make them one, "
                f"{other} = {one}."
            )


def _check_name(name: str) -> None:
    """Checkpoints and exports are HDF5 files, in which a parameter is a dataset of its name."""
    for fault, is_there in (
        ("a / in its name, which separates folders", "/" in name),
        ("a zero byte in its name, which ends names", "\0" in name),
        (f"a name of {len(name)} characters, of which at most {_MOST_OF_A_NAME} fit", len(name) > _MOST_OF_A_NAME),
    ):
        if is_there:
            shown = name if len(name) <= _MOST_OF_A_NAME else f"{name[:64]}..."
            raise ValueError(f"Parameter {shown!r} has {fault} in checkpoints: rename its module.")


def lay_out(param_groups: list, module: torch.nn.Module | None) -> Layout:
    """Raises ValueError for a dtype that nearstep does not train, and for parameters that share memory."""
    in_groups = {}
    for number, group in enumerate(param_groups):
        for place, p in enumerate(group["params"]):
            if p.requires_grad and p.numel():
                in_groups[id(p)] = (p, number, f"{number}.{place}")
    names = {} if module is None else {id(p): plain_name(name) for name, p in module.named_parameters()}
    found = [key for key in names if key in in_groups] + [key for key in in_groups if key not in names]
    for key in found:
        p, _, name = in_groups[key]
        check_formats([p], [names.get(key, name)])
        _check_name(names.get(key, name))
    blocks, reads = ([], []) if module is None else _blocks_of(module, {key: i for i, key in enumerate(found)})
    listed = {i for block in blocks for i in block.tensors}
    rest = [i for i in range(len(found)) if i not in listed]
    if rest:
        blocks.append(Block(rest, sum(in_groups[found[i]][0].numel() for i in rest)))
    order = [i for block in blocks for i in block.tensors]
    block_of = [number for number, block in enumerate(blocks) for _ in block.tensors]
    place = {old: new for new, old in enumerate(order)}
    for block in blocks:
        block.tensors = [place[i] for i in block.tensors]
    keys = [found[i] for i in order]
    dtypes = {in_groups[key][0].dtype for key in keys}
    laid = Layout(
        params=[in_groups[key][0] for key in keys],
        names=[names.get(key, in_groups[key][2]) for key in keys],
        group_of=[in_groups[key][1] for key in keys],
        dtype=dtypes.pop() if len(dtypes) == 1 else torch.float32,
        blocks=blocks,
        block_of=block_of,
        reads=[(owner, sorted({block_of[place[i]] for i in read}), [place[i] for i in read]) for owner, read in reads],
    )
    _refuse_shared_memory(laid.params, laid.names)
    return laid
