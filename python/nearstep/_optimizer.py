"""The base class of the optimizers: the engine as a PyTorch optimizer. Used by _optimizers.py."""

from __future__ import annotations

import os
import weakref

import torch

from ._torch_private import DisableTorchFunctionSubclass
from . import _engine, _hooks, _ranks
from ._model import sharded
from ._gradients.clipping import answer_clipping
from ._gradients.intake import Intake
from ._local import saved, whole
from ._local.optimizer import make_local
from ._local.parts import is_sharded
from ._local.wanted import may_turn_local, wants_local
from ._model.empty import guard, is_empty, open_guarded
from ._model.groups import DTYPES, lay_out, named, trained_of
from ._saving import export
from ._saving.program import Program
from ._saving.shown import ShownState
from ._session import Session, drop
from ._starting import keywords
from ._starting.begin import refuse_empty_without_module
from ._starting.names import whole_path
from ._starting.suggestions import suggests
from ._starting.settings import check_accumulation_dtype, check_groups, check_values, settings_of
from ._starting.weights import Weights
from ._streaming.stream import Stream, check_stream
from ._streaming.streaming import Streaming


class Optimizer(ShownState):
    """A ``torch.optim.Optimizer`` whose state is in storage and is updated near it. Make one of its classes: AdamW,
    Adam, SGD, Adagrad or Lion, whose ``help()`` begins with a whole program. "Collective" means that all ranks make the
    call, in the same order.

    ``params``: a module, or ``groups(module)``, or tensors or parameter groups as for PyTorch's optimizers. With a
    module the update overlaps the next forward, and each layer waits only for its own parameters; with tensors
    ``step()`` waits.

    Keyword arguments of every class:
        path: folder or folders for the state, one per drive; the devices of a node's ranks take them in order, or those
            that ``launch/slurm`` grants. Default ``runs/state``.
        log: folder or folders on drives for logs of gradients. The state is then in memory, too; a step writes its log
            and a sixteenth of the state to ``path``, and survives a power cut. Default: a step writes all state.
        state: format of the stored state: "fp32", "bf16", "q8" or "compact"; see docs/pytorch.md. Default "fp32".
        codec: format of gradients, such as "q4"; see docs/pytorch.md. Default "dense".
        clip_norm: largest norm of the gradient over all ranks; None: no clipping. ``clipping="delayed"`` clips by the
            norm of the previous step.
        accumulation: backward passes per step. None: as many as in the step before; the first step's gradients are
            sent in ``step()`` then.
        accumulation_dtype: format of the sums of several backward passes. Default ``torch.float32``. With
            ``torch.bfloat16`` gradients of bfloat16 parameters are added as PyTorch adds them to ``p.grad``, and sums
            take half of the memory.
        keep_gradients: gradients stay in ``p.grad`` until ``step()``, as with PyTorch's optimizers, so that the
            program can read, clip and change them, and drop them at no cost. They take GPU memory, and the update
            begins later.
        keep_random: the random generators (PyTorch's, Python's, NumPy's) are durable with each step and come back by
            ``resume()``.
        devices: number of emulated devices of each rank, or a list with one number per rank. Default: the ranks of a
            node divide the paths, and each has one device at least.
        durability: "step": every step survives a crash; "checkpoint" or "none": see docs/restart.md.
        seed: of stochastic rounding, and of start values that are drawn for a model from ``nearstep.empty()``.
            Default 1.
        fresh: start anew even if ``path`` holds a run.
        weights: folder of safetensors with start values for a model that was made in ``nearstep.empty()``.
        stream: see ``nearstep.Stream``: for models whose parameters do not fit the GPU.
        gpu_memory_gb: the GPU memory that this process may take; default: all. Over several backward passes,
            gradients are summed on the GPU as far as the memory suffices beside a pass, as measured in the
            first one, and in host memory for the other layers. With ``stream``: see ``nearstep.Stream``.
        config: any other key of nearstep's configuration, as ``{"csd": {"slots": 6}, "gather.codec": "delta"}``.

    Raises ValueError for settings, models and states that do not fit together, PermissionError, NotADirectoryError or
    another OSError for a path that cannot be made or written or is full, OSError for files that cannot be read or
    written later, RuntimeError for calls in the wrong order.
    """

    _name = ""  # the engine's name of the optimizer
    _like: type | None = None  # PyTorch's class of it
    _is_part = False  # of an optimizer of several ranks, see _local
    _moments: tuple = ()  # PyTorch's names of the engine's arrays; None: not used

    def __init_subclass__(cls, **settings):
        super().__init_subclass__(**settings)
        if "__init__" in vars(cls):
            keywords.show(cls, Optimizer)

    def __init__(
        self,
        params,
        defaults: dict,
        *,
        path=None,
        log=None,
        state=None,
        codec=None,
        clip_norm=None,
        clipping="exact",
        accumulation=None,
        accumulation_dtype=torch.float32,
        keep_gradients=False,
        keep_random=False,
        devices=None,
        durability=None,
        seed=None,
        fresh=False,
        weights=None,
        stream: Stream | None = None,
        gpu_memory_gb=None,
        config=None,
        **unknown,
    ):
        self._given = {name: value for name, value in locals().items() if name in keywords.Settings.__annotations__}
        self._is_ready = False
        keywords.refuse(type(self), unknown)
        module = params if isinstance(params, torch.nn.Module) else getattr(params, "module", None)
        super().__init__(trained_of(params), defaults)
        check_values(
            self.param_groups,
            clip_norm,
            accumulation,
            gpu_memory_gb,
            keep_gradients=keep_gradients,
            keep_random=keep_random,
            fresh=fresh,
        )
        keywords.refuse_in_groups(type(self), defaults, self.param_groups)
        check_groups(type(self), self.param_groups)
        check_stream(stream, keep_gradients, gpu_memory_gb)
        self._module = module
        self._closed_because = ""
        self._drops: weakref.finalize | None = None
        sharded.refuse(named(self.param_groups, module))
        layout = lay_out(self.param_groups, module)
        check_accumulation_dtype(accumulation_dtype, layout)
        settings = settings_of(self._given, elements=sum(block.elements for block in layout.blocks))
        _engine.check_settings(DTYPES[layout.dtype], settings)
        self._params, self._names, self._dtype = layout.params, layout.names, layout.dtype
        if not self._is_part and wants_local(layout.params, self._given):
            make_local(self, Optimizer, module, self._given)
            return
        refuse_empty_without_module(self._params, module)
        weights = None if weights is None else Weights(weights, module)
        streaming = stream and Streaming(stream, module, self._params, layout.block_of, self._dtype)
        if stream is not None:  # gradients of all layers do not fit the GPU, so that they must leave in backward
            accumulation = accumulation or 1
        self._compared = {
            "clip_norm": clip_norm,
            "accumulation": accumulation,
            "accumulation_dtype": str(accumulation_dtype),
            "keep_gradients": bool(keep_gradients),
            "keep_random": bool(keep_random),
            "weights": "none" if weights is None else "given",
        }
        self._intake = Intake(
            layout,
            int(accumulation or 0),
            accumulation_dtype,
            not keep_gradients,
            streaming,
            gpu_memory_gb,
            float(clip_norm or 0),
        )
        self._session = Session(
            layout,
            module,
            settings,
            self._name,
            weights,
            1 if seed is None else int(seed),
            bool(fresh),
            Program(module, keep_random),
            self._intake,
            streaming,
        )
        self._is_scaled = False
        self._made_with = self._groups_of()
        ids = set() if module is None else set(map(id, module.parameters()))
        self._of_module = {id(p): name for p, name in zip(self._params, self._names) if id(p) in ids}
        answer_clipping()
        _hooks.refuse_second_optimizer(self, self._params, self._names)
        _hooks.own(self, self._params)
        self._readers = None if module is None else _hooks.Readers(self, module, layout.reads)
        # If so, step() must wait, since parameters may be read where no hook precedes.
        self._is_read_elsewhere = self._readers is None or self._readers.is_read_elsewhere
        self._handles = [*filter(None, [self._readers]), *self._intake.hooks()]
        self._is_ready = True
        self.extra = None
        _ranks.keep(self)

    # --- Start ---

    @property
    def has_begun(self) -> bool:
        """Whether the state is open."""
        return self._session.has_begun

    @property
    def _conductor(self):
        return self._session.conductor

    @property
    def steps(self) -> int:
        """Steps done, including those before this process."""
        if not self._params:
            return 0
        self._begin()
        return self._conductor.steps

    @property
    def durable_step(self) -> int:
        """The newest step that survives a crash now, at most two behind the last ``step()`` that returned; ``finish()``
        waits for the last one. With another ``durability`` than "step", the step of the last ``save()``."""
        if not self._params:
            return 0
        self._begin()
        return self._conductor.durable_step

    @property
    def rank(self) -> int:
        self._begin()
        return self._conductor.rank

    @property
    def ranks(self) -> int:
        self._begin()
        return self._conductor.ranks

    @suggests
    @may_turn_local
    def resume(self, checkpoint: str | None = None) -> int:
        """Resumes from the newest durable step in ``path``, else from the newest checkpoint, else starts anew. With
        ``checkpoint``, a path that ``save()`` returned, resumes from that one. The module's persistent buffers come
        back, too. Returns the number of steps done. Call it before the first step. Collective."""
        if self.has_begun:
            raise RuntimeError("resume() comes before the first forward: the optimizer has begun already.")
        if not self._params:
            return 0
        self._begin(is_resuming=True, checkpoint=whole_path("checkpoint", checkpoint) if checkpoint else "")
        return self._conductor.steps

    def _has_turned_local(self) -> bool:
        """Whether the groups have DTensors by now, and the optimizer has become that of one of PyTorch's ranks."""
        if (
            self._is_part
            or self.has_begun
            or not self._is_ready
            or not any(is_sharded(p) for group in self.param_groups for p in group["params"])
        ):
            return False
        for handle in self._handles:
            handle.remove()
        del self._session, self._intake  # they hold the parameters that were replaced
        make_local(self, Optimizer, self._module, self._given)
        return True

    def _check_open(self) -> None:
        if not self._is_ready:
            raise RuntimeError(self._closed_because or "This optimizer is closed: make a new one to go on.")

    @may_turn_local
    def _begin(self, is_resuming: bool = False, checkpoint: str = "") -> None:
        if self.has_begun:
            return
        self._check_open()
        parameters = [] if self._module is None else list(self._module.parameters())
        if not self._is_part:
            _ranks.check_group()
        sharded.refuse(zip(self._names, self._params))  # the model may have been wrapped since the optimizer was made
        takes_over = not self._is_part and whole.is_in_the_way(self, is_resuming, checkpoint)
        of_ranks = checkpoint if saved.is_of_ranks(checkpoint) and not self._given["fresh"] else ""
        if of_ranks:
            whole.unpack(self, checkpoint)
        if self._readers is not None:
            self._readers.leave_compiled()
        open_guarded(parameters)
        try:
            self._session.begin(self, is_resuming, "" if of_ranks else checkpoint)
        except BaseException:
            guard(parameters)
            raise
        if takes_over:
            whole.forget_parts(self)
        if self._conductor.steps:
            self._opt_called = True  # a scheduler that catches up with these steps need not warn
        self.extra = saved.extra_of(of_ranks) if of_ranks else self._session.extra
        self._drops = weakref.finalize(self, drop, self._conductor, self._session.parameters, self._handles)
        self._drops.atexit = False  # _ranks closes optimizers at the end of the process

    # --- A step ---

    def _before_forward(self, number: int, blocks: list) -> None:
        """``number``: of the hook; 0: of the whole module; ``blocks``: those that the module's own forward reads."""
        if self._has_turned_local():
            return
        if torch.is_grad_enabled():  # all ranks train; a single rank may evaluate first
            self._begin()
        elif not self.has_begun and self._module is not None and any(map(is_empty, self._module.parameters())):
            raise RuntimeError(
                "The module is empty until training begins: call opt.resume() before the first evaluation."
            )
        self._session.bring(number, blocks)

    def _groups_of(self) -> dict:
        """The number of each parameter's group, by the parameter's id."""
        return {id(p): number for number, group in enumerate(self.param_groups) for p in group["params"]}

    def _step_to_take(self):
        """The step's description for the engine."""
        check_groups(type(self), self.param_groups)
        if self._groups_of() != self._made_with:
            raise RuntimeError(
                "The parameter groups have other parameters than when the optimizer was made: leave them, freeze "
                "parameters (requires_grad=False) that shall stay, or make a new optimizer."
            )
        if self._dtype == torch.float16 and not self._is_scaled:
            raise RuntimeError("Gradients of float16 parameters need the loss scale: call opt.scale(loss).backward().")
        return (self._name, [self._hyper(group) for group in self.param_groups], self._intake.clipping.norm)

    @may_turn_local
    @torch.no_grad()
    def step(self, closure=None):
        """Takes the step. The update continues after this returns. ``closure`` is called first, and its result
        returned. Collective: all ranks must call it equally often."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_open()
        if not self._params:
            return loss
        of_module = [] if self._module is None else list(self._module.parameters())
        sharded.refuse(zip(self._names, self._params))
        _hooks.refuse_replaced(self._of_module, of_module)
        if not self._is_part:
            _ranks.check_group()
        self._begin()
        with DisableTorchFunctionSubclass():
            _hooks.refuse_unfrozen(
                self._params, of_module or [p for group in self.param_groups for p in group["params"]]
            )
            has_ended = self._session.end_step()
        self._is_scaled = False
        if not has_ended:
            return loss
        self._session.after_step()
        if self._is_read_elsewhere:
            self.synchronize()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients. If some of this step have left, the step is given up on all ranks: state and parameters
        are those of the last step."""
        if not self._params or not self._is_ready:
            super().zero_grad(set_to_none)
            return
        self._intake.drop(set_to_none)
        held = set(map(id, self._params))
        for group in self.param_groups:
            for p in group["params"]:
                if id(p) not in held:
                    p.grad = None

    @may_turn_local
    def scale(self, loss):
        """The loss times the engine's loss scale. float16 parameters need it; for others the scale is 1."""
        self._begin()
        self._is_scaled = True
        return loss * self._conductor.loss_scale()

    # --- Parameters ---

    def synchronize(self) -> None:
        """Waits until the parameters are those of the last step, which any use of one does by itself. Streamed ones are
        in host memory then, until their layer computes. Not collective. Raises RuntimeError between backward() and
        step() if parameters are the engine's own, because these may be new already: streamed ones, and those of a model
        from ``nearstep.empty()``."""
        self._session.synchronize()

    # --- Checkpoints ---

    def _write_back(self) -> None:
        """Brings what the program wrote into parameters into the state."""
        self._begin()
        self._session.write_back()

    @suggests
    @may_turn_local
    def save(self, folder: str | None = None, extra=None) -> str:
        """Writes a checkpoint, which is kept until this run's next one in the folder, and returns its path. If
        ``folder`` is another run's, the checkpoint goes into the folder ``run-ID`` in it. ``extra``: any JSON value,
        such as the position in the data; ``opt.extra`` holds it after a start from this checkpoint. Collective."""
        self._write_back()
        return self._session.save(folder, extra)

    @suggests
    @may_turn_local
    def export(self, folder: str, dtype: str | torch.dtype = "fp32") -> None:
        """Writes what the module's ``state_dict()`` holds as safetensors into a new folder, with the module's names,
        tied ones once, and its ``config.json``; ``from_pretrained(folder)`` loads it. Trained parameters are the fp32
        masters. These and all other floating-point tensors are rounded to ``dtype`` (``"fp32"``, ``"bf16"``,
        ``"fp16"``, or PyTorch's name). A name that ends in ``.h5`` gives one HDF5 file. Uses a checkpoint of this step,
        which ``save()`` writes if there is none. The files are complete when rank 0 returns. Collective. Raises
        ValueError if the folder or file exists, or if the format cannot hold what the module has."""
        self._write_back()
        others = export.others_of(self._module, self._params, self._names)
        step, path = self._session.saved
        if step != self._conductor.steps or not os.path.exists(path):
            path = self.save()
        if self._conductor.rank == 0:
            ties = export.ties_of(self._module, self._params, self._names)
            export.write(path, folder, DTYPES.get(dtype, str(dtype)), self._module, others, ties)

    def finish(self) -> None:
        """Waits until all steps so far are finished, and durable as ``durability`` says. Not collective."""
        self._session.finish()

    @may_turn_local
    def masters_digest(self) -> int:
        """XXH3 of the fp32 parameters of all ranks, to compare two runs bit by bit. Collective."""
        self._write_back()
        return self._conductor.masters_digest()

    def close(self) -> None:
        """Finishes the last step, closes the state and leaves a plain module. A step between backward() and step() is
        given up. Collective."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if not self._is_ready:
            return
        self._is_ready = False
        if self._drops is not None:
            self._drops.detach()
        self._session.close()

    def add_param_group(self, param_group: dict) -> None:
        """Raises RuntimeError: the state is laid out when the optimizer is made, which needs all groups."""
        if getattr(self, "_is_ready", False):
            raise RuntimeError("nearstep lays its state out when it is made: give it all parameter groups then.")
        super().add_param_group(param_group)

    def _hyper(self, group: dict) -> tuple:
        """Learning rate, two betas, epsilon and weight decay as the engine takes them."""
        beta1, beta2 = group.get("betas", (group.get("momentum", 0.0), 0.0))
        return tuple(float(x) for x in (group["lr"], beta1, beta2, group.get("eps", 0.0), group["weight_decay"]))
