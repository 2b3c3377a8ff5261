"""Hooks on modules that bring parameters before a forward, and which optimizer trains a parameter. Used by
_optimizer.py."""

from __future__ import annotations

import weakref

import torch

from ._model.groups import compiled_layers
from ._torch_private import leave_uncompiled

leave_uncompiled(__package__)

_owners: dict = {}  # the optimizer of each parameter, by its id


def _nothing(*_) -> None:
    """Stands in the hook's place in a copy of a hooked module, and does nothing."""


def _make_nothing():
    return _nothing


class _BeforeForward:
    """Acts for its module, and not for a copy of it."""

    def __init__(self, optimizer, module, number: int, blocks: list):
        self._optimizer, self._home, self._number, self._blocks = (
            weakref.ref(optimizer),
            weakref.ref(module),
            number,
            blocks,
        )

    @torch.compiler.disable
    def __call__(self, of, *_):
        if getattr(of, "_is_replica", False):
            raise RuntimeError("DataParallel copies parameters before they are new: start one rank for each GPU.")
        optimizer = self._optimizer()
        if optimizer is not None and of is self._home():
            optimizer._before_forward(self._number, self._blocks)

    def __deepcopy__(self, _):
        return _nothing

    @property
    def __name__(self):  # torch.jit.script() asks for it, to compile the hook
        raise AttributeError(
            "torch.jit.script() cannot compile the hooks of a model in training: script another model that has "
            "loaded its state_dict(), or call the optimizer's close() before."
        )

    def __reduce__(self):
        return _make_nothing, ()


def _readers(module, reads: list) -> tuple:
    """Pairs of a module that takes hooks and the blocks that its forward reads, the whole module first; and whether
    some parameters are read by code that no hook and no watched parameter precedes: TorchScript's."""
    parents = {id(child): parent for parent in module.modules() for child in parent.children()}
    compiled = compiled_layers(module)
    blocks_of = {id(module): (module, set())}
    for owner, blocks, _ in reads:
        while isinstance(owner, torch.jit.ScriptModule) and id(owner) in parents:
            owner = parents[id(owner)]
        if isinstance(owner, torch.jit.ScriptModule):
            return [], True
        owner = compiled.get(id(owner), owner)
        blocks_of.setdefault(id(owner), (owner, set()))[1].update(blocks)
    return [(owner, sorted(blocks)) for owner, blocks in blocks_of.values()], False


def register(optimizer, module, reads: list, params: list) -> tuple:
    """``reads``: modules, with the blocks that their own forwards read. Returns the hooks' handles, and whether step()
    must wait, since parameters may be read where no hook precedes."""
    for p in params:
        _owners[id(p)] = weakref.ref(optimizer)
    if module is None:
        return [], True
    readers, is_read_elsewhere = _readers(module, reads)
    return [
        # Before those that were there: they may compute with parameters.
        owner.register_forward_pre_hook(_BeforeForward(optimizer, owner, number, blocks), prepend=True)
        for number, (owner, blocks) in enumerate(readers)
    ], is_read_elsewhere


def refuse_second_optimizer(optimizer, params: list, names: list) -> None:
    """Raises ValueError if another optimizer trains one of the parameters. One that has not begun gives them up."""
    for p, name in zip(params, names):
        other = _owners.get(id(p), lambda: None)()
        if other is None or other is optimizer or not other._is_ready or not any(one is p for one in other._params):
            continue
        if other.has_begun:
            raise ValueError(f"{name} is trained by another nearstep optimizer: call close() on that one first.")
        other.close()


def refuse_replaced(known: dict, now: list) -> None:
    """Raises RuntimeError if the module has another tensor in a trained parameter's place. ``known``: names by id;
    ``now``: the module's parameters."""
    for key in known.keys() - set(map(id, now)):
        name = known[key]
        raise RuntimeError(
            f"{name} is another tensor than when the optimizer was made (as after resize_token_embeddings(), "
            "load_state_dict(assign=True), "
            "or a wrapper such as FullyShardedDataParallel), and the new one is not trained: change the model before "
            "the optimizer is made, "
            "or make a new optimizer."
        )


def refuse_unfrozen(trained: list, now: list) -> None:
    """Raises RuntimeError if a parameter that was frozen when the optimizer was made, and has no state, has a gradient.
    ``now``: the module's parameters, or those of the groups."""
    held = set(map(id, trained))
    late = [p for p in now if p.requires_grad and p.grad is not None and id(p) not in held and p.numel()]
    if late:
        raise RuntimeError(
            f"{len(late)} parameters were frozen or not there when the optimizer was made and have a gradient now, "
            "for which there is no state: make a new "
            "optimizer to train them, or make it while they require gradients and freeze them afterwards. If another "
            "optimizer trains them, give this "
            "one its own parameters in place of the module."
        )
