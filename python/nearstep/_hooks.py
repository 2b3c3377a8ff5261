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


class Readers:
    """The hooks on a module and on those inside it whose forwards read blocks."""

    def __init__(self, optimizer, module, reads: list):
        """``reads``: modules, with the blocks that their own forwards read."""
        self._optimizer, self._module = weakref.ref(optimizer), weakref.ref(module)
        self._reads = [(weakref.ref(owner), blocks) for owner, blocks, _ in reads]
        self._handles: list = []
        # Whether some parameters are read by code that no hook and no watched parameter precedes: TorchScript's.
        self.is_read_elsewhere = False
        self._compiled: set = set()  # ids of modules inside compiled layers
        self._place()

    def leave_compiled(self) -> None:
        """Moves hooks out of layers that the program has compiled since."""
        if compiled_layers(self._module()).keys() != self._compiled:
            self._place()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _place(self) -> None:
        self.remove()
        compiled = compiled_layers(self._module())
        self._compiled = set(compiled)
        self._handles = [
            # Before those that were there: they may compute with parameters.
            owner.register_forward_pre_hook(_BeforeForward(self._optimizer(), owner, number, blocks), prepend=True)
            for number, (owner, blocks) in enumerate(self._found(compiled))
        ]

    def _found(self, compiled: dict) -> list:
        """Pairs of a module that takes a hook and the blocks that its forward reads, the whole module first.
        ``compiled``: see compiled_layers()."""
        module = self._module()
        parents = {id(child): parent for parent in module.modules() for child in parent.children()}
        blocks_of = {id(module): (module, set())}
        there = [(owner(), blocks) for owner, blocks in self._reads]
        for owner, blocks in ((owner, blocks) for owner, blocks in there if owner is not None):
            while isinstance(owner, torch.jit.ScriptModule) and id(owner) in parents:
                owner = parents[id(owner)]
            if isinstance(owner, torch.jit.ScriptModule):
                self.is_read_elsewhere = True
                return []
            owner = compiled.get(id(owner), owner)
            blocks_of.setdefault(id(owner), (owner, set()))[1].update(blocks)
        return [(owner, sorted(blocks)) for owner, blocks in blocks_of.values()]


def own(optimizer, params: list) -> None:
    """Notes which optimizer trains the parameters."""
    for p in params:
        _owners[id(p)] = weakref.ref(optimizer)


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
