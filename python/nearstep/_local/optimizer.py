"""An optimizer of ranks that PyTorch has started: the engine of one rank for this rank's part, and what the ranks
agree on. Used by _optimizer.py."""

from __future__ import annotations

import functools
import zlib

import torch

from .. import _hooks
from .._model import sharded
from .._model.groups import Groups, lay_out, named
from .._saving.program import Program
from .._starting.settings import check_groups
from . import start, state_dicts
from .engines import given_to_part
from .parts import Parts, clip_factor, squares
from .shadow import shadow_of
from .waits import Waits, outermost
from .world import World, of_all_ranks

_STEPS, _SETTINGS, _PRESENT = range(3)  # of what the ranks tell each other in a step


def _digest(value) -> float:
    return float(zlib.crc32(repr(value).encode()))


class Local:
    """Comes before the optimizer's own class. ``_own``: the optimizer of this rank's part, from the first use on;
    ``_given``: the settings that the program gave."""

    def _start_local(self, module, given: dict) -> None:
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            module = module.module
        self._module, self._given = module, given
        self._own = self._parts = self._world = None
        ids = set() if module is None else set(map(id, module.parameters()))
        made_with = zip(map(id, vars(self).pop("_params")), self._names)
        self._of_module = {key: name for key, name in made_with if key in ids}
        self._done = 0
        self._saved = (-1, "")  # the step of the last checkpoint of this process, and its path
        self._norms: dict = {}  # of the last steps, by their numbers
        self._patch_step_function()
        self._is_ready = True
        self.extra = None

    # --- Start ---

    @property
    def _params(self) -> list:
        """Nothing else holds them before the first use: fully_shard() may replace them until then."""
        if self._parts is not None:
            return self._parts.params
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad and p.numel()]

    @property
    def has_begun(self) -> bool:
        return self._own is not None

    @property
    def _conductor(self):
        return self._own._conductor

    @property
    def steps(self) -> int:
        if self._params:
            self._begin()
        return self._done

    @property
    def rank(self) -> int:
        self._begin()
        return self._world.rank

    @property
    def ranks(self) -> int:
        self._begin()
        return self._world.size

    def resume(self, checkpoint: str | None = None) -> int:
        if self.has_begun:
            raise RuntimeError("resume() comes before the first forward: the optimizer has begun already.")
        if self._params:
            self._begin(is_resuming=True, checkpoint=checkpoint)
        return self._done

    def begin_from(self, carried) -> None:
        """Replaces the state. ``carried``: a function of the parts that returns the new state, see Carried."""
        if self._own is not None:
            self._waits.close()
            self._own.close()
            self._own = None
        self._begin(carried=carried)

    def _begin(self, is_resuming: bool = False, checkpoint: str | None = None, carried=None) -> None:
        if self.has_begun:
            return
        self._check_open()
        sharded.refuse(named(self.param_groups, self._module))  # the model may have been wrapped since
        self._world = World()
        layout = self._world.together(self._lay_out)
        self._names, self._made_with = layout.names, self._groups_of()
        parts = self._world.together(lambda: Parts(layout, self._world))
        self._world.together(parts.find_reduced)
        if any(one != parts.alike() for one in self._world.gather_with_hosts(parts.alike())):
            raise of_all_ranks(
                ValueError(
                    "The ranks have different parameters that are not DTensors, as in stages of a pipeline: give each "
                    "stage a process group of its own by "
                    "fully_shard(), or start one program for each."
                )
            )
        self._parts = parts
        parts.count_holders()
        if self._world.is_several:
            self._world.refuse_shared_gpus({bucket.device for bucket in parts.buckets})
            parts.enter_groups()
        with torch.no_grad():
            self._done = start.begin(self, parts, self._world, is_resuming, checkpoint, carried)
            parts.gather()
        self._waits = Waits(self, self._own, parts, self._module)
        if self._done:
            self._opt_called = True  # a scheduler that catches up with these steps need not warn

    def _lay_out(self):
        self._cut_like = outermost(self._params) if self._module is None else self._module
        layout = lay_out(self.param_groups, self._cut_like)
        if self._module is None:  # the names are those of every program that gives no module
            names = {id(p): name for name, p in named(self.param_groups, None)}
            layout.names = [names[id(p)] for p in layout.params]
        else:
            trained = {id(p): self._of_module[id(p)] for p in layout.params if id(p) in self._of_module}
            _hooks.refuse_replaced(trained, list(self._module.parameters()))
        return layout

    def lay_out_whole(self):
        """Returns the layout of the whole parameters, as one process has it."""
        return lay_out(self.param_groups, self._module)

    def make_own(self, path: list, name: str, is_fresh: bool):
        """The optimizer of this rank's pieces, with its state in these folders."""
        parts, given = self._parts, given_to_part(self._given, path, name, self._world.rank, is_fresh)
        groups: list = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": []}
            for group in self.param_groups
        ]
        for piece in parts.pieces:
            groups[parts.layout.group_of[piece.number]]["params"].append(piece.tensor)
        shadow = shadow_of(self._cut_like, {id(parts.params[piece.number]): piece.tensor for piece in parts.pieces})
        own = object.__new__(_class_of(Part, type(self)._plain_class, type(self)._base))
        type(self)._base.__init__(own, Groups(groups, shadow), dict(self.defaults), **given)
        if [id(p) for p in own._params] != [id(piece.tensor) for piece in parts.pieces]:
            raise RuntimeError("The parameters of a rank's part have another order than those of the model.")
        own._names[:] = [piece.place.name for piece in parts.pieces]  # in messages and in the state's description
        own._session.program = Program(self._module, bool(given["keep_random"]))
        return own

    # --- A step ---

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_open()
        if not self._params:
            return loss
        self._begin()
        check_groups(type(self), self.param_groups)
        if self._groups_of() != self._made_with:
            raise RuntimeError(
                "The parameter groups have other parameters than when training began: make a new "
                "optimizer after the model has changed."
            )
        self._waits.refuse_new_units()
        own, parts = self._own, self._parts
        self._waits.await_all()
        parts.refresh()
        own.finish()  # this rank's last step is durable before any rank overwrites the one before
        present = parts.present()
        told = [
            self._done,
            _digest([self._name, self._given["clip_norm"], *map(self._hyper, self.param_groups)]),
            _digest(present),
        ]
        if parts.averages:
            present = self._agree(self._world.gather(told), present)
            gradients = parts.gradients(present)
            rows = self._world.gather(squares(parts.pieces, gradients))
        else:
            gradients = parts.gradients(present)
            rows = self._world.gather([*told, *squares(parts.pieces, gradients)])
            of_all = self._agree(rows, present)
            if of_all != present:
                gradients = parts.gradients(of_all)
        norm = sum(row[-1] for row in rows) ** 0.5 / own._loss_scale()
        self._update(gradients, norm)
        return loss

    def _agree(self, rows: list, present: list) -> list:
        """Whether any rank has a gradient, for each parameter."""
        for what, place in (("step", _STEPS), ("learning rate, or another setting of a step,", _SETTINGS)):
            other = next((rank for rank, row in enumerate(rows) if row[place] != rows[0][place]), None)
            if other is not None:
                raise RuntimeError(
                    f"Rank {other} has another {what} than rank 0: let all ranks take the same steps "
                    f"with the same settings. What is durable stays."
                )
        if all(row[_PRESENT] == rows[0][_PRESENT] for row in rows):
            return present
        of_ranks = self._world.gather_objects(present)
        return [any(of_rank[i] for of_rank in of_ranks) for i in range(len(present))]

    def _update(self, gradients: list, norm: float) -> None:
        own = self._own
        for group, mine in zip(self.param_groups, own.param_groups):
            mine.update({key: value for key, value in group.items() if key != "params"})
        for piece, gradient in zip(self._parts.pieces, gradients):
            piece.tensor.grad = gradient
        own.take(clip_factor(norm, float(self._given["clip_norm"] or 0)))
        for piece in self._parts.pieces:
            piece.tensor.grad = None
        self._done += 1
        self._norms = {self._done - 1: self._norms.get(self._done - 1, 0.0), self._done: norm}
        self._waits.end_step()

    def _before_forward(self, number: int, blocks: list) -> None:
        if self.has_begun:
            self._waits.before_forward(blocks)

    def zero_grad(self, set_to_none: bool = True) -> None:
        torch.optim.Optimizer.zero_grad(self, set_to_none)

    def scale(self, loss):
        self._begin()
        return loss * self._own._loss_scale()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return False

    # --- Parameters, checkpoints and reports ---

    def synchronize(self) -> None:
        if self.has_begun:
            self._waits.await_all()

    def finish(self) -> None:
        if self.has_begun:
            self._own.finish()

    def stats(self) -> dict:
        found = self._own.stats() if self.has_begun else {}
        return {**found, "norm": self._norms.get(found["step"], found["norm"])} if found else {}

    def masters_digest(self) -> int:
        """Returns a digest of the digests of all ranks. States that are equal and divided alike have the same one."""
        self._begin()
        self.synchronize()
        return zlib.crc32(repr(self._world.gather_objects(self._own.masters_digest())).encode())

    def save(self, folder: str | None = None, extra=None) -> str:
        self._begin()
        self.synchronize()
        self._saved = (self._done, start.save(self, folder, extra))
        return self._saved[1]

    def export(self, folder: str, dtype="fp32") -> None:
        raise RuntimeError(
            "The ranks that PyTorch started have parts of the model: save "
            "torch.distributed.checkpoint.state_dict.get_model_state_dict(model, "
            "options=StateDictOptions(full_state_dict=True, cpu_offload=True)) in place of an export."
        )

    def close(self) -> None:
        if not self._is_ready:
            return
        self._is_ready = False
        if self._own is not None:
            try:
                self._waits.close()
            finally:
                self._own.close()

    # --- The state ---

    def state_dict(self) -> dict:
        self.synchronize()
        found = state_dicts.state_dict(self)
        for hook in self._optimizer_state_dict_post_hooks.values():
            found = hook(self, found) or found
        return found

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        state_dicts.load(self, state_dict)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _read_state(self, i: int) -> dict:
        raise RuntimeError(
            "Each rank has the moments of a part of the parameters: "
            "torch.distributed.checkpoint.state_dict.get_optimizer_state_dict() gives those of "
            "DTensors."
        )

    def _updates_of(self, i: int) -> int:
        return self._done if self.has_begun else 0


class Part:
    """Comes before the class of the optimizer of a rank's part."""

    _is_part = True

    def take(self, factor: float) -> None:
        """A step with the gradients times the factor; none takes place if that is not a number."""
        self._intake._factor = factor
        if self._params:
            self.step()

    def _loss_scale(self) -> float:
        return self._conductor.loss_scale() if self._params else 1.0

    def finish(self) -> None:
        if self._params:
            super().finish()

    def masters_digest(self) -> int:
        return super().masters_digest() if self._params else 0


@functools.cache
def _class_of(first, plain, base):
    return type(
        plain.__name__,
        (first, plain),
        {"__module__": plain.__module__, "__doc__": plain.__doc__, "_plain_class": plain, "_base": base},
    )


def make_local(optimizer, base, module, given: dict) -> None:
    """The optimizer, of which no more than its groups are there, is of one of several ranks that PyTorch has started.
    ``base``: of all optimizers."""
    optimizer.__class__ = _class_of(Local, type(optimizer), base)
    optimizer._start_local(module, given)
