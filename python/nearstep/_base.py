"""The base class of the optimizers: the engine as a PyTorch optimizer."""

from __future__ import annotations

import functools
import os
import sys
import warnings
import weakref

import torch
import torch._functorch.pyfunctorch

from . import _clipping, _description, _engine, _export, _extra, _first_calls, _hooks, _ranks, _start
from ._empty import is_empty
from ._groups import DTYPES, check_formats, lay_out, trained_of
from ._intake import Intake
from ._parameters import Parameters
from ._program import Program
from ._settings import check_groups, check_numbers, settings_of
from ._state import OfAll, Place
from ._stream import Stream, Streaming
from ._weights import Weights


class Optimizer(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer`` whose state is in storage and is updated near it.

    ``params``: a module, or ``groups(module)``, or tensors or parameter groups as for PyTorch's optimizers. With a
    module the update overlaps the next forward, and each layer waits only for its own parameters; with tensors
    ``step()`` waits.

    Keyword arguments of every class:
        path: folder or folders for the state, one per drive; the devices of a node's ranks take them in order, or those
            that ``launch/slurm`` grants. Default ``runs/state``.
        state: format of the stored state: "fp32", "bf16", "q8" or "compact"; see docs/pytorch.md.
        codec: format of gradients: "dense", "q8", "q4" or "topk".
        clip_norm: largest norm of the gradient over all ranks; None: no clipping. ``clipping="delayed"`` clips by the
            norm of the previous step.
        accumulation: backward passes per step. None: as many as in earlier steps; then the first step's gradients are
            sent in ``step()``.
        keep_gradients: gradients stay in ``p.grad`` until ``step()``, as with PyTorch's optimizers, so that the program can
            read, clip and change them, and drop them at no cost. They take GPU memory, and the update begins later.
        keep_random: the random generators (PyTorch's, Python's, NumPy's) are durable with each step and come back by
            ``resume()``.
        devices: number of emulated devices of each rank, or a list with one number per rank. Default: the ranks of a
            node divide the paths, and each has one device at least.
        durability: "step": every step survives a crash; "checkpoint" or "none": see docs/restart.md.
        fresh: start anew even if ``path`` holds a run.
        weights: folder of safetensors with start values for a model that was made in ``nearstep.empty()``.
        stream: see ``nearstep.Stream``: for models whose parameters do not fit the GPU.
        config: any other key of nearstep's configuration, as ``{"csd": {"slots": 6}, "gather.codec": "delta"}``.

    Raises ValueError for settings, models and states that do not fit together, PermissionError, NotADirectoryError or
    another OSError for a path that cannot be made or written or is full, OSError for files that cannot be read or
    written later, RuntimeError for calls in the wrong order.
    """

    _name = ""  # the engine's name of the optimizer
    _like: type | None = None  # PyTorch's class of it
    _moments: tuple = ()  # PyTorch's names of the engine's arrays; None: not used

    def __init__(self, params, defaults: dict, *, path=None, state=None, codec=None, clip_norm=None, clipping="exact",
                 accumulation=None, keep_gradients=False, keep_random=False, devices=None, durability=None, seed=None, fresh=False,
                 weights=None, stream: Stream | None = None, config=None):
        self._is_ready = False
        module = params if isinstance(params, torch.nn.Module) else getattr(params, "module", None)
        super().__init__(trained_of(params), defaults)
        check_numbers(self.param_groups, clip_norm, accumulation)
        check_groups(self._like, self.param_groups)
        if stream is not None and keep_gradients:
            raise ValueError("keep_gradients=True keeps all gradients on the GPU, which stream= is there to avoid: leave one of them out.")
        self._module = module
        self._clip_norm = float(clip_norm or 0)
        self._is_fresh = bool(fresh)
        self._conductor = None
        self._parameters = None
        self._streaming = None
        self._closed_because = ""
        self._handles: list = []
        layout = lay_out(self.param_groups, module)
        self._settings = settings_of(path, state, codec, clipping, devices, durability, seed, config or {},
                                     elements=sum(block.elements for block in layout.blocks))
        self._params, self._names, self._group_of, self._dtype = layout.params, layout.names, layout.group_of, layout.dtype
        self._blocks, self._block_of = layout.blocks, layout.block_of
        _start.refuse_empty_without_module(self._params, module)
        self._weights = None if weights is None else Weights(weights, module)
        self._streaming = stream and Streaming(stream, module, self._params, self._block_of, self._dtype)
        if stream is not None:  # gradients of all layers do not fit the GPU, so that they must leave in backward
            accumulation = accumulation or 1
        self._seed = 1 if seed is None else int(seed)
        self._program = Program(module, keep_random)
        self._intake = Intake(layout, int(accumulation or 0), not keep_gradients, self._streaming)
        self._said_skipped = 0
        self._is_expected = False  # whether the engine knows that a step comes
        self._is_scaled = False
        ids = set() if module is None else set(map(id, module.parameters()))
        self._of_module = {id(p): name for p, name in zip(self._params, self._names) if id(p) in ids}
        _clipping.answer_for_norms()
        _hooks.refuse_second_optimizer(self, self._params, self._names)
        self._handles, self._is_read_elsewhere = _hooks.register(self, module, layout.reads, self._params)
        self._handles += self._intake.hooks()
        self._is_ready = True
        self.extra = None
        _ranks.keep(self)

    # --- Start ---

    @property
    def has_begun(self) -> bool:
        """Whether the state is open."""
        return self._conductor is not None

    @property
    def steps(self) -> int:
        """Steps done, including those before this process."""
        if not self._params:
            return 0
        self._begin()
        return self._conductor.steps

    @property
    def rank(self) -> int:
        self._begin()
        return self._conductor.rank

    @property
    def ranks(self) -> int:
        self._begin()
        return self._conductor.ranks

    def resume(self, checkpoint: str | None = None) -> int:
        """Resumes from the newest durable step in ``path``, else from the newest checkpoint, else starts anew. With
        ``checkpoint``, a path that ``save()`` returned, resumes from that one. The module's persistent buffers come back,
        too. Returns the number of steps done. Call it before the first step. Collective."""
        if self._conductor is not None:
            raise RuntimeError("resume() comes before the first forward: the optimizer has begun already.")
        if not self._params:
            return 0
        self._begin(is_resuming=True, checkpoint=os.path.abspath(checkpoint) if checkpoint else "")
        return self._conductor.steps

    def _check_open(self) -> None:
        if not self._is_ready:
            raise RuntimeError(self._closed_because or "This optimizer is closed: make a new one to go on.")

    @torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack()  # also in torch.func's transforms
    def _begin(self, is_resuming: bool = False, checkpoint: str = "") -> None:
        if self._conductor is not None:
            return
        self._check_open()
        if not self._params:
            raise RuntimeError("This optimizer has no state, since nothing is trained: all parameters are frozen (requires_grad=False).")
        _ranks.check_launcher()
        _first_calls.make_first_calls()
        devices = {p.device for p in self._params}
        check_formats(self._params, self._names)
        if len(devices) > 1 or any(device.type not in ("cpu", "cuda") for device in devices):
            raise ValueError(f"The parameters are on {', '.join(sorted(map(str, devices)))}: nearstep takes one CPU or one CUDA device per rank.")
        self._device = devices.pop()
        if self._device.type == "cuda":  # gradients leave while backward, which was queued before, goes on
            self._encodes = torch.cuda.Stream(self._device, priority=-1)
        conductor = _engine.Conductor(
            settings=self._settings,
            tensors=[(name, list(p.shape), group) for name, p, group in zip(self._names, self._params, self._group_of)],
            tensors_of_blocks=[len(block.tensors) for block in self._blocks],
            dtype=DTYPES[self._dtype],
            model=_description.of_model(self._module, self._names, self._params, _engine.moments_of(self._name)),
            granted_devices=os.environ.get("NEARSTEP_CSDS", ""),
            gpu=self._device.index if self._device.type == "cuda" else None,
            gradient_stream=self._encodes.cuda_stream if self._device.type == "cuda" else 0,
            fills_gpu=self._streaming is None,
            threads=torch.get_num_threads() if self._device.type == "cpu" else 0,
        )
        _ranks.close_others(self, conductor.paths)
        needs_values = conductor.open(is_resuming, self._is_fresh, checkpoint)
        vector = conductor.vector().view(self._dtype)
        self._parameters = Parameters(self._params, self._names, [block.tensors for block in self._blocks], conductor, vector, self._device, self._streaming)
        try:
            if self._streaming:
                self._streaming.prepare(conductor, self._device)
            lines = _start.begin(conductor, self._parameters, self._params, self._module, self._weights, self._seed, needs_values, self._streaming)
            if conductor.program_state:
                self._program.restore(conductor.program_state, self._device)
        except BaseException:
            self._parameters = None
            conductor.close()
            raise
        self._conductor = conductor
        if conductor.steps:
            self._opt_called = True  # a scheduler that catches up with these steps need not warn
        self._saved = (-1, "")
        self.extra = (_extra.read(os.path.dirname(checkpoint), conductor.steps) if checkpoint
                      else _extra.read(conductor.checkpoint_folder, conductor.steps, conductor.lines))
        if conductor.rank == 0:
            print(f"nearstep {_engine.version()}: {_description.of_run(conductor, self._params, self._device)}", *lines, sep="\nnearstep: ", file=sys.stderr)
        if self._streaming:
            self._streaming.open(self._parameters)
        self._intake.open(conductor, self._parameters, self._device, self._encodes if self._device.type == "cuda" else None,
                          weakref.WeakMethod(self._step_to_take), looks_late=self._is_read_elsewhere)
        self._drops = weakref.finalize(self, _drop, conductor, self._parameters, self._handles)
        self._drops.atexit = False  # _ranks closes optimizers at the end of the process

    # --- A step ---

    def _before_forward(self, number: int, blocks: list) -> None:
        """``number``: of the hook; 0: of the whole module; ``blocks``: those that the module's own forward reads."""
        is_training = torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1  # not computed again in backward
        if torch.is_grad_enabled():  # all ranks train; a single rank may evaluate first
            if self._conductor is None:
                self._begin()
            if not self._is_expected:
                self._conductor.expect_step()
                self._is_expected = True
        elif self._conductor is None and self._module is not None and any(map(is_empty, self._module.parameters())):
            raise RuntimeError("The module is empty until training begins: call opt.resume() before the first evaluation.")
        if self._conductor is not None:
            if is_training and not self._intake.is_collecting and (number == 0 or not self._parameters.is_looked):
                self._parameters.look_for_written()
            for block in blocks:
                self._parameters.bring(block)

    def _step_to_take(self):
        """The step's description for the engine."""
        check_groups(self._like, self.param_groups)
        if self._dtype == torch.float16 and not self._is_scaled:
            raise RuntimeError("Gradients of float16 parameters need the loss scale: call opt.scale(loss).backward().")
        return (self._name, [self._hyper(group) for group in self.param_groups], self._clip_norm)

    @torch.no_grad()
    def step(self, closure=None):
        """Takes the step. The update continues after this returns. ``closure`` is called first, and its result returned.
        Collective: all ranks must call it equally often."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_open()
        if not self._params:
            return loss
        of_module = [] if self._module is None else list(self._module.parameters())
        _hooks.refuse_replaced(self._of_module, of_module)
        self._begin()
        with torch._C.DisableTorchFunctionSubclass():
            self._refuse_unfrozen(of_module)
            self._intake.end_step(self._program.collect(self._device))
            self._is_expected = self._is_scaled = False
            self._parameters.end_step()
        if self._streaming:
            self._streaming.end_step()
        self._say_skipped()
        if self._is_read_elsewhere:
            self.synchronize()
        return loss

    def _refuse_unfrozen(self, of_module: list) -> None:
        """Parameters that were frozen when the optimizer was made have no state."""
        held = set(map(id, self._params))
        known = of_module or [p for group in self.param_groups for p in group["params"]]
        late = [p for p in known if p.requires_grad and p.grad is not None and id(p) not in held and p.numel()]
        if late:
            raise RuntimeError(
                f"{len(late)} parameters were frozen when the optimizer was made and have a gradient now, for which there is no state: make a new "
                "optimizer to train them, or make it while they require gradients and freeze them afterwards."
            )

    def _say_skipped(self) -> None:
        """A line when gradients were not finite: at the first time, and whenever the number has doubled."""
        skipped = self._conductor.stats()["skipped"]
        first = 16 if self._dtype == torch.float16 else 1  # fp16 finds its loss scale by skipping
        if self._conductor.rank == 0 and skipped >= max(first, 2 * self._said_skipped):
            self._said_skipped = skipped
            steps = "1 step was" if skipped == 1 else f"{skipped} steps were"
            print(f"nearstep: {steps} skipped, since a gradient was infinite or NaN; parameters and state stay as they are", file=sys.stderr)

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

    def scale(self, loss):
        """The loss times the engine's loss scale. float16 parameters need it; for others the scale is 1."""
        self._begin()
        self._is_scaled = True
        return loss * self._conductor.loss_scale()

    # --- Parameters ---

    def synchronize(self) -> None:
        """Waits until the parameters are those of the last step, which any use of one does by itself. Streamed ones are
        in host memory then, until their layer computes. Not collective. Raises RuntimeError between backward() and step()
        if parameters are the engine's own, because these may be new already: streamed ones, and those of a model from
        ``nearstep.empty()``."""
        if self._conductor is not None:
            if self._intake.told is not None and self._parameters.are_values:
                raise RuntimeError("The parameters are between two steps, since backward() has begun the update: call step() before you read them.")
            self._parameters.bring_all()
            if self._streaming and self._streaming.is_open:
                self._streaming.empty()

    # --- Checkpoints and reports ---

    def _settle(self) -> None:
        """What the program wrote into parameters is in the state."""
        self._begin()
        if self._intake.told is None:
            self._parameters.settle(is_thorough=True)

    def save(self, folder: str | None = None, extra=None) -> str:
        """Writes a checkpoint, which is kept until this run's next one in the folder, and returns its path. If
        ``folder`` is another run's, the checkpoint goes into the folder ``run-ID`` in it. ``extra``: any JSON value, such as the position in the data; ``opt.extra`` holds it after a start from this checkpoint.
        Collective."""
        self._settle()
        folder = os.fspath(folder or self._conductor.checkpoint_folder)
        folder = self._conductor.claim_checkpoint_folder(folder)
        failure = _extra.write(folder, self._conductor.steps, self._conductor.lines, extra) if self._conductor.rank == 0 else None
        path = self._conductor.save(folder, self._program.content(self._device))
        if failure is not None:
            raise failure
        self._saved = (self._conductor.steps, os.path.abspath(path))
        return path

    def export(self, folder: str, dtype: str | torch.dtype = "fp32") -> None:
        """Writes what the module's ``state_dict()`` holds as safetensors into a new folder, with the module's names, tied ones
        once, and its ``config.json``; ``from_pretrained(folder)`` loads it. Trained parameters are the fp32 masters. These and
        all other floating-point tensors are rounded to ``dtype`` (``"fp32"``, ``"bf16"``, ``"fp16"``, or PyTorch's name). Uses a
        checkpoint of this step, which ``save()`` writes if there is none. The files are complete when rank 0 returns. Collective.
        Raises ValueError if the folder exists, or if safetensors cannot hold what the module has."""
        self._settle()
        others = _export.others_of(self._module, self._params, self._names)
        step, path = self._saved
        if step != self._conductor.steps or not os.path.exists(path):
            path = self.save()
        if self._conductor.rank == 0:
            _export.write(path, folder, DTYPES.get(dtype, str(dtype)), self._module, others)

    def finish(self) -> None:
        """Waits until all steps so far are finished, and durable as ``durability`` says. Not collective."""
        if self._conductor is not None:
            self._conductor.finish()

    def stats(self) -> dict:
        """Facts about the last finished step: ``step``, ``norm`` of the gradient, ``is_skipped``, ``loss_scale`` of the
        next step, seconds of its phases (``gradients_s`` from the first gradient to the norm, ``update_s``,
        ``commit_s``), ``waited_s`` that this rank has waited for parameters since ``step()``, and ``bytes`` per link
        over all ranks. Totals so far: ``skipped`` steps, whose gradient was not finite, ``guesses`` that a step needs no
        clipping, with which its update began in backward, and ``misses``, the wrong ones. Empty before the first step of
        this process."""
        stats = self._conductor.stats() if self._conductor is not None else {}
        return stats if stats.get("is_of_step") else {}

    def progress(self) -> str:
        """The last finished step, for a progress line: ``bar.set_postfix_str(opt.progress())`` with tqdm."""
        stats = self.stats()
        if not stats:
            return "no step yet"
        skipped = ", skipped" if stats["is_skipped"] else ""
        return f"norm {stats['norm']:.3g}{skipped}, update {stats['update_s']:.2g} s, waited {stats['waited_s']:.2g} s"

    def masters_digest(self) -> int:
        """XXH3 of the fp32 parameters of all ranks, to compare two runs bit by bit. Collective."""
        self._settle()
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
        if self._conductor is None:
            return
        self._drops.detach()
        try:
            if self._intake.told is None:
                self._parameters.settle(is_thorough=True, is_last=True)
                self.finish()
                self.synchronize()
        finally:
            _ranks.leave_step(self._conductor)
            if self._streaming:
                self._streaming.close()
            self._conductor.close(keeps_vector=self._parameters.are_values)
            self._parameters.close()

    # --- The state as PyTorch's optimizers show it ---

    @property
    def state(self) -> OfAll:
        """The state of each parameter: ``step``, and the master and moments, which are read from storage when asked for."""
        return OfAll(self)

    @state.setter
    def state(self, value) -> None:
        if self._is_ready and value is not self.state:
            OfAll(self).clear()

    def _updates_of(self, i: int) -> int:
        return 0 if self._conductor is None else self._conductor.updates()[i]

    def _read_state(self, i: int) -> dict:
        self._begin()
        if self._conductor.ranks > 1:
            raise RuntimeError("Moments are read on one rank: call opt.save(), and read the checkpoint, where there are several.")
        self._settle()
        found = self._conductor.read_state(i)
        shape = self._params[i].shape
        return {name: values.view(shape) for name, values in zip(("master", *self._moments), found) if name}

    def state_dict(self) -> dict:
        """The parameter groups, and where the state is, which is not copied. If it is saved, as by ``torch.save``, a
        checkpoint of this step is written unless ``save()`` wrote one. Raises RuntimeError then if several ranks train,
        or if another step was taken since."""
        handle = self.register_state_dict_post_hook(Optimizer._show_place, prepend=True)  # the program's hooks see all of it
        try:
            return super().state_dict()
        finally:
            handle.remove()

    def _show_place(self, out: dict) -> None:
        updates = self._conductor.updates() if self._conductor is not None else [0] * len(self._params)
        out["state"] = {i: {"step": float(n)} for i, n in enumerate(updates)} if any(updates) else {}
        place = {} if self._conductor is None else self._place()
        out["nearstep"] = Place(place, functools.partial(_make_durable, weakref.ref(self)))

    def _place(self) -> dict:
        step = self._conductor.steps
        folder = os.path.abspath(self._conductor.checkpoint_folder)
        checkpoint = self._saved[1] if self._saved[0] == step else os.path.join(folder, "state_dicts", f"run-{self._conductor.line}", f"step-{step:08}", f"step-{step:08}.h5")
        return {"path": list(self._conductor.paths), "run": self._conductor.line, "step": step, "checkpoint": checkpoint}

    def load_state_dict(self, state_dict: dict) -> None:
        """Returns to the step that the dictionary names: to its checkpoint, or to the state in ``path`` if that is at
        this step. Collective. Raises RuntimeError if training went on since."""
        place: dict = {}

        def before(_, given: dict) -> dict:
            place.update(self._place_to_return_to(given))
            return {"state": {}, "param_groups": given["param_groups"]}

        handles = [self.register_load_state_dict_pre_hook(before),  # after the program's, which may change the dictionary
                   self.register_load_state_dict_post_hook(lambda _: self._return_to(place), prepend=True)]  # before the program's
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def _place_to_return_to(self, state_dict: dict) -> dict:
        """Empty if the state is from before the first step. Raises if the optimizer cannot return there."""
        place = state_dict.get("nearstep")
        if place is None:
            raise ValueError("This is the state of another optimizer: nearstep's says where its state is. Start from the module's weights.")
        here = None if self._conductor is None else (self._conductor.line, self._conductor.steps)
        if here is not None and not place and self._conductor.steps > 0:
            raise RuntimeError(
                f"This state is from before the optimizer began, which is at step {here[1]} now: load_state_dict() comes before the first forward, or make a "
                "new optimizer with fresh=True."
            )
        if here is not None and place and here != (place["run"], place["step"]):
            raise RuntimeError(f"This state is of step {place['step']}, and the optimizer is at step {here[1]}: load_state_dict() comes before the first forward.")
        return place

    def _return_to(self, place: dict) -> None:
        if not place or self._conductor is not None:
            return
        has_checkpoint = os.path.exists(place["checkpoint"])
        self._begin(is_resuming=True, checkpoint=place["checkpoint"] if has_checkpoint else "")
        if self._conductor.steps != place["step"]:
            raise ValueError(
                f"The state in {', '.join(place['path'])} is at step {self._conductor.steps} and there is no checkpoint of step "
                f"{place['step']} ({place['checkpoint']}): call opt.save() whenever the model is saved."
            )
        if place["run"] not in self._conductor.lines:
            found = place["checkpoint"] if has_checkpoint else ", ".join(place["path"])
            raise ValueError(f"{found} holds step {place['step']} of another run, which has replaced this state: give each run a folder of its own.")

    def __deepcopy__(self, _):
        raise TypeError("An optimizer whose state lies in storage cannot be copied: make another one with a path of its own.")

    def __reduce_ex__(self, _):
        raise TypeError("An optimizer whose state lies in storage cannot be pickled: save opt.state_dict(), or call opt.save().")

    @property
    def _step_supports_amp_scaling(self) -> bool:  # GradScaler asks for it in its step()
        if not self._intake.takes:
            return False  # it unscales the gradients itself
        raise RuntimeError("GradScaler finds no gradients, which nearstep takes during backward: leave it out; float16 parameters need opt.scale(loss).backward().")

    def add_param_group(self, param_group: dict) -> None:
        if getattr(self, "_is_ready", False):
            raise RuntimeError("nearstep lays its state out when it is made: give it all parameter groups then.")
        super().add_param_group(param_group)

    def _hyper(self, group: dict) -> tuple:
        """Learning rate, two betas, epsilon and weight decay as the engine takes them."""
        beta1, beta2 = group.get("betas", (group.get("momentum", 0.0), 0.0))
        return tuple(float(x) for x in (group["lr"], beta1, beta2, group.get("eps", 0.0), group["weight_decay"]))


def _drop(conductor, parameters, handles) -> None:
    """Ends the engine of an optimizer that nobody has any more."""
    for handle in handles:
        handle.remove()
    if _ranks.is_left_in_step(conductor):  # the end of the process ends all ranks
        return
    _ranks.leave_step(conductor)
    conductor.close(keeps_vector=parameters.are_values)
    parameters.close()


def _make_durable(me, place) -> None:
    """Writes the checkpoint that a state_dict() names."""
    optimizer = me()
    if not place or os.path.exists(place["checkpoint"]):
        return
    begun = optimizer is not None and optimizer.has_begun and optimizer._is_ready
    if not begun or (optimizer._conductor.line, optimizer._conductor.steps) != (place["run"], place["step"]):
        raise RuntimeError(f"The state of step {place['step']} is gone, since training went on: save opt.state_dict() before the next step, or call opt.save() first.")
    if optimizer._conductor.ranks > 1:
        raise RuntimeError("With several ranks call opt.save() on all of them before one saves opt.state_dict(): it says where that checkpoint is.")
    optimizer.save(os.path.dirname(place["checkpoint"]))
