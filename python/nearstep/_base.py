"""The base class of the optimizers: the engine as a PyTorch optimizer."""

from __future__ import annotations

import collections
import functools
import os
import sys
import warnings
import weakref

import torch

from . import _clipping, _description, _engine, _export, _extra, _first_calls, _gradients, _ranks, _start
from ._empty import is_empty
from ._groups import DTYPES, NOTHING, check_formats, lay_out
from ._parameters import Parameters
from ._reads import Reads
from ._settings import check_numbers, settings_of
from ._stream import Stream, Streaming
from ._weights import Weights


def _for_module(me, module, act):
    """A hook that acts for this module, and not for a copy of it, which has its hooks."""
    home = weakref.ref(module)

    @torch.compiler.disable
    def hook(of, *_):
        if getattr(of, "_is_replica", False):
            raise RuntimeError("DataParallel copies parameters before they are new: start one rank for each GPU.")
        optimizer = me()
        if optimizer is not None and of is home():
            act(optimizer)

    return hook


class Optimizer(torch.optim.Optimizer):
    """A ``torch.optim.Optimizer`` whose state is in storage and is updated near it.

    ``params``: a module, or ``groups(module)``, or tensors or parameter groups as for PyTorch's optimizers. With a
    module the update overlaps the next forward, and each layer waits only for its own parameters; with tensors
    ``step()`` waits.

    Keyword arguments of every class:
        path: folder or folders for the state, one per drive; the devices of a node's ranks take them in order, or those
            that ``launch/slurm`` grants. Default ``runs/state``.
        state: format of the stored state: "fp32", "bf16", "q8" or "compact"; see docs/pytorch.md.
        codec: format of gradients: "dense", "q8", "q4", "ternary", "sign" or "topk".
        clip_norm: largest norm of the gradient over all ranks; None: no clipping. ``clipping="delayed"`` clips by the
            norm of the previous step.
        accumulation: backward passes per step. None: as many as in earlier steps; then the first step's gradients are
            sent in ``step()``.
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

    def __init__(self, params, defaults: dict, *, path=None, state=None, codec=None, clip_norm=None, clipping="exact",
                 accumulation=None, devices=None, durability=None, seed=None, fresh=False, weights=None, stream: Stream | None = None,
                 config=None):
        module = params if isinstance(params, torch.nn.Module) else getattr(params, "module", None)
        if isinstance(params, torch.nn.Module):
            params = [p for p in params.parameters() if p.requires_grad]
            if not params:
                raise ValueError(NOTHING)
        self._is_ready = False
        self._has_warned = False
        super().__init__(params, defaults)
        check_numbers(self.param_groups, clip_norm, accumulation)
        self._module = module
        self._clip_norm = float(clip_norm or 0)
        self._is_fresh = bool(fresh)
        if stream is not None:  # gradients of all layers do not fit the GPU, so that they must leave in backward
            accumulation = accumulation or 1
        self._expected = int(accumulation) if accumulation else 0  # backward passes per step; 0: not known yet
        self._waits_for_step = False  # parameters without a gradient were seen
        self._conductor = None
        self._encodes_on_gpu = False
        self._handles: list = []
        layout = lay_out(self.param_groups, module)
        self._settings = settings_of(path, state, codec, clipping, devices, durability, seed, config or {},
                                     elements=sum(block.elements for block in layout.blocks))
        self._params, self._names, self._group_of, self._dtype = layout.params, layout.names, layout.group_of, layout.dtype
        self._blocks, self._block_of = layout.blocks, layout.block_of
        self._reads = Reads(module, layout.reads, layout.block_of)
        _start.refuse_empty_without_module(self._params, module)
        self._weights = None if weights is None else Weights(weights, module)
        self._streaming = stream and Streaming(stream, module, self._params, self._block_of, self._dtype)
        self._seed = 1 if seed is None else int(seed)
        _clipping.refuse_foreign_clipping()
        _clipping.refuse_second_optimizer(self._params, self._names)
        self._register_hooks()
        self._begin_counting()
        self._is_ready = True
        self.extra = None
        _ranks.keep(self)

    # --- Hooks ---

    def _register_hooks(self) -> None:
        me = weakref.ref(self)

        def on_gradient(i):
            def take(p):
                optimizer = me()
                if optimizer is not None:
                    optimizer._take(i)

            return take

        for i, p in enumerate(self._params):
            _clipping.owners[id(p)] = (me, i)
            self._handles.append(p.register_post_accumulate_grad_hook(on_gradient(i)))
        for number, (module, blocks) in enumerate(self._reads.modules):
            act = functools.partial(Optimizer._before_forward, number=number, blocks=blocks)
            self._handles.append(module.register_forward_pre_hook(_for_module(me, module, act)))
        self._reads.modules = []
        for module in [] if self._module is None else self._module.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                self._handles.append(module.register_state_dict_pre_hook(_for_module(me, module, Optimizer.synchronize)))
                self._handles.append(module._register_load_state_dict_pre_hook(_for_module(me, module, Optimizer._before_load), with_module=True))

    def _before_load(self) -> None:
        """Values that are loaded into the module do not reach the state."""
        if self._conductor is None:
            return
        if self._reads.is_first_step and self._conductor.steps == 0:
            raise RuntimeError("The optimizer has begun with other values: call load_state_dict() before opt.resume() and the first forward.")
        self.synchronize()
        if self._parameters.are_values and any(one.startswith('gather.codec="delta"') for one in self._settings):
            raise RuntimeError("The parameters are the engine's memory, on which deltas build: load weights into another model.")
        warnings.warn("The loaded values last until the next step, which goes on from the optimizer's state: make a new optimizer with fresh=True to train from them.")

    def _before_forward(self, number: int, blocks: list) -> None:
        """``number``: of the hook; ``blocks``: those that the module's own forward reads."""
        if self._told is not None and torch._C._current_graph_task_id() == -1:  # not within backward
            self._refuse_between_steps(blocks)
        if torch.is_grad_enabled():  # all ranks train; a single rank may evaluate first
            self._begin()
            if not self._is_expected:
                self._conductor.expect_step()
                self._is_expected = True
        elif self._conductor is None and self._module is not None and any(map(is_empty, self._module.parameters())):
            raise RuntimeError("The module is empty until training begins: call opt.resume() before the first evaluation.")
        if self._conductor is not None:
            self._reads.begin(number)
            for block in blocks:
                self._bring(block)

    def _begin_counting(self) -> None:
        """Resets the counts at the start of a step."""
        count = len(self._params)
        self._gradients = [None] * count
        self._passes = [0] * count
        self._missing = [len(block.tensors) for block in self._blocks]
        self._is_put = [False] * len(self._blocks)
        self._streams = [set() for _ in self._blocks]  # of the GPU, in which the block's gradients were computed
        self._told = None  # the step's description sent to the engine; None: not sent
        self._is_expected = False  # whether the engine knows that a step comes
        _ranks.leave_step(self)
        self._is_scaled = False

    # --- Start ---

    @property
    def has_begun(self) -> bool:
        """Whether the state is open."""
        return self._conductor is not None

    @property
    def steps(self) -> int:
        """Steps done, including those before this process."""
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
        ``checkpoint``, a path that ``save()`` returned, resumes from that one. Returns the number of steps done. Call
        it before the first step. Collective."""
        if self._conductor is not None:
            raise RuntimeError("resume() comes before the first forward: the optimizer has begun already.")
        self._begin(is_resuming=True, checkpoint=os.path.abspath(checkpoint) if checkpoint else "")
        return self._conductor.steps

    def _begin(self, is_resuming: bool = False, checkpoint: str = "") -> None:
        if self._conductor is not None:
            return
        if not self._handles:
            raise RuntimeError("This optimizer is closed: make a new one to go on.")
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
        )
        needs_values = conductor.open(is_resuming, self._is_fresh, checkpoint)
        vector = conductor.vector().view(self._dtype)
        streamed = self._streaming.numbers() if self._streaming else set()
        self._parameters = Parameters(self._params, [block.tensors for block in self._blocks], vector, self._device, streamed)
        try:
            if self._streaming:
                self._streaming.prepare(conductor, self._device)
            lines = _start.begin(conductor, self._parameters, self._params, self._module, self._weights, self._seed, needs_values, self._streaming)
        except BaseException:
            self._parameters = None
            conductor.close()
            raise
        self._conductor = conductor
        if conductor.steps:
            self._opt_called = True  # a scheduler that catches up with these steps need not warn
        self._encodes_on_gpu = conductor.facts()["encodes_on_gpu"]
        self._factor = 1 / conductor.ranks
        self._in_flight = collections.deque()
        self._saved = (-1, "")
        self.extra = (_extra.read(os.path.dirname(checkpoint), conductor.steps) if checkpoint
                      else _extra.read(conductor.checkpoint_folder, conductor.steps, conductor.lines))
        if conductor.rank == 0:
            print(f"nearstep {_engine.version()}: {_description.of_run(conductor, self._params, self._device)}", *lines, sep="\nnearstep: ", file=sys.stderr)
        if self._streaming:
            self._streaming.open(self._parameters.values)

    # --- Gradients ---

    @torch.no_grad()
    def _take(self, i: int) -> None:
        """Takes a gradient that is ready. Runs on a thread of autograd."""
        p = self._params[i]
        self._reads.check(i, self._names[i], self._conductor.ranks if self._conductor else 1)
        gradient, p.grad = p.grad, None
        if self._is_put[self._block_of[i]]:
            raise RuntimeError(
                f"The gradient of {self._names[i]} comes once more, and that of this step has left: backward runs "
                f"{self._expected} times for a step, as before. Pass accumulation=N for N times."
            )
        if gradient.is_sparse:
            raise ValueError(f"The gradient of {self._names[i]} is sparse: make it dense (sparse=False of Embedding).")
        if gradient.is_cuda:
            self._streams[self._block_of[i]].add(torch.cuda.current_stream(gradient.device))
        self._add(i, gradient)
        self._passes[i] += 1
        if self._expected and self._passes[i] == self._expected:
            block = self._block_of[i]
            self._missing[block] -= 1
            if self._missing[block] == 0:
                self._put(block)

    def _add(self, i: int, gradient) -> None:
        """Adds a gradient in fp32, whatever the parameters' format is."""
        if self._streaming and self._expected != 1:
            gradient = gradient.cpu()  # waits for others; all together do not fit the GPU
        have = self._gradients[i]
        self._gradients[i] = gradient if have is None else _gradients.add(have, gradient, self._encodes_on_gpu)

    def _step_to_take(self):
        """The step's description for the engine."""
        return (self._name, [self._hyper(group) for group in self.param_groups], self._clip_norm)

    def _tell(self, absent: list) -> None:
        self._begin()
        if self._dtype == torch.float16 and not self._is_scaled:
            raise RuntimeError("Gradients of float16 parameters need the loss scale: call opt.scale(loss).backward().")
        step = self._step_to_take()
        self._conductor.begin_step(*step, absent)
        self._told = step
        _ranks.enter_step(self)

    def _put(self, block: int) -> None:
        """Hands a block's gradients to the engine."""
        if self._told is None:
            self._tell([i for i, p in enumerate(self._params) if not p.requires_grad])
        tensors = self._blocks[block].tensors
        gradients = [self._gradients[i] for i in tensors]
        for i, gradient in zip(tensors, gradients):
            if gradient is not None and gradient.device != self._device and not (self._streaming and gradient.device.type == "cpu"):
                raise RuntimeError(
                    f"Parameter {self._names[i]} moved from {self._device} to {gradient.device} after training began: "
                    "move the model before the optimizer's first use."
                )
            self._gradients[i] = None
        for stream in self._streams[block]:
            torch.cuda.current_stream(self._device).wait_stream(stream)
        place = self._device if self._encodes_on_gpu else "cpu"
        gradients = [None if g is None else g.to(place).contiguous() for g in gradients]
        made = None
        if self._encodes_on_gpu:
            made = torch.cuda.Event()
            made.record(torch.cuda.current_stream(self._device))
            for gradient in gradients:
                if gradient is not None:  # not reused before the engine has read it
                    gradient.record_stream(self._encodes)
        pieces = [(0, "fp32") if g is None else (g.data_ptr(), DTYPES[g.dtype]) for g in gradients]
        work = self._conductor.put(block, pieces, self._factor, made.cuda_event if made else 0)
        self._is_put[block] = True
        while self._in_flight and self._conductor.is_done(self._in_flight[0][0]):
            self._in_flight.popleft()
        self._in_flight.append((work, gradients, made))

    @torch.no_grad()
    def step(self, closure=None) -> None:
        """Takes the step. The update continues after this returns. Call ``synchronize()`` before reading parameters
        other than by a forward of the module. Collective: all ranks must call it equally often."""
        if closure is not None:
            raise RuntimeError("nearstep takes no closure, since gradients leave while backward runs: call backward() first, then step().")
        self._begin()
        self._bring_all()
        for i, p in enumerate(self._params):  # gradients set by the user
            if p.grad is not None and not self._is_put[self._block_of[i]]:
                self._add(i, p.grad)
                p.grad = None
        absent = [i for i, gradient in enumerate(self._gradients) if gradient is None and not self._is_put[self._block_of[i]]]
        left_out = absent if self._told is None else [i for i in absent if not self._params[i].requires_grad]
        if self._told is None:
            self._tell(absent)
        elif self._told != self._step_to_take():
            raise RuntimeError(
                "The learning rate or another setting changed between backward() and step(), when gradients had left: change it "
                "before backward(), as after step() by a scheduler."
            )
        elif any(self._params[i].requires_grad for i in absent):
            names = ", ".join(self._names[i] for i in absent[:3])
            warnings.warn(
                f"{len(absent)} parameters have no gradient in this step ({names}, ...): it counts as zero this once. From the next "
                "step on gradients leave in step(), so that such parameters stay as they are."
            )
        if any(self._params[i].requires_grad for i in absent):
            self._waits_for_step = True
        if not self._has_warned:
            held = set(map(id, self._params))
            known = [p for group in self.param_groups for p in group["params"]] if self._module is None else self._module.parameters()
            late = [p for p in known if p.grad is not None and id(p) not in held and p.numel()]
            if late:
                self._has_warned = True
                warnings.warn(f"{len(late)} parameters were frozen when the optimizer was made and are not trained: make a new optimizer to train them.")
        for block in reversed(range(len(self._blocks))):
            if not self._is_put[block]:
                self._put(block)
        self._conductor.end_step()
        passes = max(max(self._passes), self._expected)
        self._expected = 0 if self._waits_for_step else passes
        self._begin_counting()
        self._parameters.end_step()
        self._reads.end_step(set(range(len(self._params))).difference(left_out))
        if self._streaming:
            self._streaming.end_step()
        if self._module is None:
            self.synchronize()
        for block in self._reads.loose_blocks:
            self._bring(block)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops gradients that were not sent. Raises RuntimeError if some were, because these cannot be taken back."""
        if self._told is not None:
            raise RuntimeError("Gradients of this step have left already: call step() after backward(), then zero_grad().")
        self._begin_counting()
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None

    def scale(self, loss):
        """The loss times the engine's loss scale. float16 parameters need it; for others the scale is 1."""
        self._begin()
        self._is_scaled = True
        return loss * self._conductor.loss_scale()

    # --- Parameters ---

    def _bring(self, block: int) -> None:
        """Updates the block's parameters to the last step."""
        if self._parameters.needs(block):
            self._conductor.await_block(block)
            self._parameters.bring(block)
            if self._parameters.may_fetch(block + 1) and self._conductor.has_block(block + 1):
                self._parameters.fetch(block + 1)  # while the device computes this block

    def synchronize(self) -> None:
        """Waits until the module's parameters are those of the last step. Streamed ones are in host memory then, until
        their layer computes. Not collective. Raises RuntimeError between backward() and step() if parameters are the
        engine's own, because these may be new already: streamed ones, and those of a model from ``nearstep.empty()``."""
        if self._conductor is not None:
            if self._told is not None:
                self._refuse_between_steps()
            if not self._reads.is_all_here:  # each module's state_dict() asks
                self._bring_all()
                self._reads.is_all_here = True
            if self._streaming and self._streaming.is_open:
                self._streaming.empty()

    def _refuse_between_steps(self, blocks: list | None = None) -> None:
        """The update may have begun in backward. ``blocks``: those that are read; None: all."""
        if self._parameters.are_values and (blocks is None or any(self._is_put[block] for block in blocks)):
            raise RuntimeError("The parameters are between two steps, since backward() has begun the update: call step() before you read them.")

    def _bring_all(self) -> None:
        for block in range(len(self._blocks)):
            self._bring(block)

    # --- Checkpoints and reports ---

    def save(self, folder: str | None = None, extra=None) -> str:
        """Writes a checkpoint, which is kept until the next one in the folder, and returns its path. ``extra``: any
        JSON value, such as the position in the data; ``opt.extra`` holds it after a start from this checkpoint.
        Collective."""
        self._begin()
        folder = os.fspath(folder or self._conductor.checkpoint_folder)
        failure = _extra.write(folder, self._conductor.steps, self._conductor.lines, extra) if self._conductor.rank == 0 else None
        path = self._conductor.save(folder)
        if failure is not None:
            raise failure
        self._saved = (self._conductor.steps, os.path.abspath(path))
        return path

    def export(self, folder: str, dtype: str | torch.dtype = "fp32") -> None:
        """Writes the module's parameters, the fp32 masters rounded to ``dtype`` (``"fp32"``, ``"bf16"``, ``"fp16"``, or
        PyTorch's name), as safetensors into a new folder, with the module's names and its ``config.json``; ``from_pretrained(folder)``
        loads it. Uses a checkpoint of this step, which ``save()`` writes if there is none. The files are complete when
        rank 0 returns. Collective. Raises ValueError if the folder exists, or if the module has tensors that the
        optimizer does not hold."""
        self._begin()
        _export.refuse_what_is_not_held(self._module, self._params)
        step, path = self._saved
        if step != self._conductor.steps or not os.path.exists(path):
            path = self.save()
        if self._conductor.rank == 0:
            _export.write(path, folder, DTYPES.get(dtype, str(dtype)), self._module)

    def finish(self) -> None:
        """Waits until all steps so far are finished, and durable as ``durability`` says. Not collective."""
        if self._conductor is not None:
            self._conductor.finish()

    def stats(self) -> dict:
        """Facts about the last finished step: ``step``, ``norm`` of the gradient, ``is_skipped``, ``loss_scale`` of the
        next step, seconds of its phases (``gradients_s`` from the first gradient to the norm, ``update_s``,
        ``commit_s``), ``waited_s`` that this rank has waited for parameters since ``step()``, and ``bytes`` per link
        over all ranks. Totals so far: ``guesses`` that a step needs no clipping, with which its update began in
        backward, and ``misses``, the wrong ones."""
        self._begin()
        return self._conductor.stats()

    def progress(self) -> str:
        """The last finished step, for a progress line: ``bar.set_postfix_str(opt.progress())`` with tqdm."""
        stats = self.stats()
        skipped = ", skipped" if stats["is_skipped"] else ""
        return f"norm {stats['norm']:.3g}{skipped}, update {stats['update_s']:.2g} s, waited {stats['waited_s']:.2g} s"

    def masters_digest(self) -> int:
        """XXH3 of the fp32 parameters of all ranks, to compare two runs bit by bit. Collective."""
        self._begin()
        return self._conductor.masters_digest()

    def close(self) -> None:
        """Finishes the last step, closes the state and leaves a plain module. Collective."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._conductor is None or not self._is_ready:
            return
        self._is_ready = False
        try:
            if self._told is None:
                self.finish()
                self.synchronize()
        finally:
            if self._streaming:
                self._streaming.close()
            self._conductor.close(keeps_vector=self._parameters.are_values)
            self._parameters.values = []

    def state_dict(self) -> dict:
        """The parameter groups, and where the state is. The state is not copied; ``save()`` writes a checkpoint."""
        out = super().state_dict()
        out["nearstep"] = {} if self._conductor is None else self._place()
        return out

    def _place(self) -> dict:
        step = self._conductor.steps
        folder = os.path.abspath(self._conductor.checkpoint_folder)
        checkpoint = self._saved[1] if self._saved[0] == step else os.path.join(folder, f"step-{step:08}.h5")
        return {"path": self._conductor.paths, "run": self._conductor.line, "step": step, "checkpoint": checkpoint}

    def load_state_dict(self, state_dict: dict) -> None:
        """Returns to the step that the dictionary names: to its checkpoint, or to the state in ``path`` if that is at
        this step. Collective."""
        place = state_dict.get("nearstep")
        if place is None:
            raise ValueError("This is the state of another optimizer: nearstep's says where its state is. Start from the module's weights.")
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "nearstep"})
        if not place:
            return  # the saved optimizer had not begun
        if self._conductor is not None and (self._conductor.line, self._conductor.steps) == (place["run"], place["step"]):
            return
        if self._conductor is not None:
            raise RuntimeError("load_state_dict() comes before the first forward: the optimizer has begun already.")
        has_checkpoint = os.path.exists(place["checkpoint"])
        self._begin(is_resuming=True, checkpoint=place["checkpoint"] if has_checkpoint else "")
        if self._conductor.steps != place["step"]:
            raise ValueError(
                f"The state in {', '.join(place['path'])} is at step {self._conductor.steps} and there is no checkpoint of step "
                f"{place['step']} ({place['checkpoint']}): call opt.save() whenever the model is saved."
            )

    @property
    def _step_supports_amp_scaling(self):  # GradScaler asks for it in its step()
        raise RuntimeError("GradScaler finds no gradients, which nearstep takes during backward: leave it out; float16 parameters need opt.scale(loss).backward().")

    def add_param_group(self, param_group: dict) -> None:
        if getattr(self, "_is_ready", False):
            raise RuntimeError("nearstep lays its state out when it is made: give it all parameter groups then.")
        super().add_param_group(param_group)

    def _hyper(self, group: dict) -> tuple:
        """Learning rate, two betas, epsilon and weight decay as the engine takes them."""
        beta1, beta2 = group.get("betas", (group.get("momentum", 0.0), 0.0))
        return tuple(float(x) for x in (group["lr"], beta1, beta2, group.get("eps", 0.0), group["weight_decay"]))
