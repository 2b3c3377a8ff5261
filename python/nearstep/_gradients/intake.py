"""Takes gradients as backward makes them and hands them to the engine, layer by layer. Used by _session.py.

``p.grad`` tells what the program did with a gradient: a Departed stands there as long as nothing was done; None says
that the program dropped it; a tensor is a gradient of the program's own.
"""

from __future__ import annotations

import enum
import functools
import warnings

import torch

from .._torch_private import DisableTorchFunctionSubclass, current_graph_task_id
from . import sentences
from .. import _ranks
from .._model.departed import Departed
from .._model.groups import DTYPES
from .._undivided import undivided
from .._weakly import weakly
from .aside import Aside
from .clipping import Clipping
from .kept import Kept
from .room import Room, memory_of
from .sums import Sums

# Steps after one that was given up in which gradients leave in step(), so that they can be dropped at no cost.
_CAUTIOUS_STEPS = 100


class _Where(enum.Enum):
    """Where a parameter's gradient of this step is."""

    nowhere = 0
    held = 1  # in this object
    left = 2  # with the engine
    used = 3  # a step used it, and the program has not dropped it
    zero = 4  # the program has set it to zero
    spoilt = 5  # another came on top of one that a step used, which is gone


class Intake:
    """The gradients of a step. ``takes``: whether they are taken during backward; else they stay in ``p.grad`` until
    step(). ``accumulation``: backward passes per step; 0: to be learned. ``clip_norm``: largest norm of a gradient; 0:
    no clipping."""

    def __init__(
        self,
        layout,
        accumulation: int,
        accumulation_dtype: torch.dtype,
        takes: bool,
        streaming,
        gpu_memory_gb: float | None,
        clip_norm: float,
    ):
        self.params, self.names = layout.params, layout.names
        self.blocks, self._block_of = layout.blocks, layout.block_of
        self.takes, self.clipping = takes, Clipping(self.params, clip_norm)
        is_host_limited = streaming is not None and streaming.is_from_storage
        self._sums = Sums(layout, streaming is not None, accumulation_dtype, is_host_limited)
        self._gpu_memory_gb = gpu_memory_gb
        self.is_limited = gpu_memory_gb is not None  # the program says how much GPU memory this process may take
        self._fixed = self._learned = accumulation
        # Whether there is room for gradients of all layers of a streamed model.
        self._may_wait = streaming is None or accumulation > 1
        self._cautious = 0  # steps left
        self._departed: list = [None] * len(self.params)
        self._aside = Aside(self.params)
        self._conductor = None
        self._where = [_Where.nowhere] * len(self.params)
        self._given_up_early = 0  # steps before the start
        self.is_given_up = False  # whether the program dropped the last step, and no forward or gradient has come since
        self._kept = None if takes else Kept(self.params, weakly(self._drop_before_pass), weakly(self._note))
        self._begin_counting()

    def open(self, conductor, parameters, device, encodes, describe, looks_late: bool) -> None:
        """``encodes``: the stream in which the engine reads gradients, or None; ``describe``: returns the step's
        description; ``looks_late``: no forward says when the program has changed parameters."""
        self._conductor, self._parameters, self._device = conductor, parameters, device
        self._encodes, self._describe, self._looks_late = encodes, describe, looks_late
        self._on_gpu = conductor.facts()["encodes_on_gpu"]
        self._factor = 1 / conductor.ranks
        self._sums.open(
            conductor, device, self._on_gpu, self._room() if self._on_gpu and self.takes else None, self._learned
        )
        parameters.give_up_dropped = weakly(self.give_up_dropped)
        for _ in range(0 if conductor.is_alone else self._given_up_early):
            self._give_up_untold()

    def host_bytes(self, conductor, device: torch.device) -> int:
        """Host memory that sums of gradients of a streamed model take."""
        return self._sums.host_bytes(conductor, device) if self._learned > 1 else 0

    @property
    def bytes_on_the_way(self) -> int:
        """The most GPU memory that sums of gradients in host memory take on their way there and back."""
        return self._sums.bytes_on_the_way

    def _room(self) -> Room:
        torch.cuda.reset_peak_memory_stats(self._device)
        limit = None if self._gpu_memory_gb is None else self._gpu_memory_gb * 1e9
        return Room(functools.partial(memory_of, self._device), limit, self._conductor.facts()["gradient_bytes"])

    def close(self) -> None:
        self._sums.close()

    def before_forward(self, begins: bool) -> None:
        """Call it before a layer's forward, while this step's gradients are here. ``begins``: it is the module's."""
        with torch.no_grad():
            self._sums.make_room(begins)

    def _begin_counting(self) -> None:
        """Resets what belongs to one step."""
        count = len(self.params)
        self._sums.begin_step()
        self._passes = [0] * count
        self._missing = [len(block.tensors) for block in self.blocks]
        self._is_put = [False] * len(self.blocks)
        self._streams = [set() for _ in self.blocks]  # of the GPU, in which the block's gradients were computed
        self._zeroed: set = set()  # left, and the program has set them to zero
        self._own: set = set()  # held, and the program's own tensors, which it may write at any time
        self.told = None  # the step's description sent to the engine; None: not sent
        self.is_collecting = False  # a gradient of the step has come
        self.clipping.begin_step()
        _ranks.leave_step(self._conductor)

    def hooks(self) -> list:
        """Registers hooks on the parameters; returns their handles."""
        handles = []
        # Older hooks of the program run first, and see the gradient of one pass in p.grad where PyTorch has the sum.
        self._older_hooks = {i for i, p in enumerate(self.params) if getattr(p, "_post_accumulate_grad_hooks", None)}
        before, take = (self._before, self._take) if self._kept is None else (self._kept.before, self._kept.take)
        for i, p in enumerate(self.params):
            handles += [p.register_hook(weakly(before, i)), p.register_post_accumulate_grad_hook(weakly(take, i))]
        return handles

    # --- What the program did with p.grad ---

    def sentence_about(self, i: int) -> str:
        return sentences.has_left(self.names[i])

    def clip(self, params: list, max_norm: float, norm_type: float) -> float:
        """The program clips the gradients of ``params``. Returns the norm of the last finished step, 0 before the first
        one; an infinite ``max_norm`` only asks for it."""
        self.clipping.ask(params, max_norm, norm_type, self.told is not None)
        return 0.0 if self._conductor is None else self._conductor.stats()["norm"]

    def zero(self, i: int) -> None:
        """The program sets the gradient to zero."""
        is_of_step = self._where[i] in (_Where.held, _Where.left)
        if self._where[i] is _Where.left:
            self._zeroed.add(i)
        else:
            self._forget(i)
            self._where[i] = _Where.zero
        if is_of_step and self._all_dropped():
            self.give_up()

    def _is_dropped(self, i: int) -> bool:
        return self.params[i].grad is None or i in self._zeroed or (self._kept is not None and self._kept.is_zeroed(i))

    def _all_dropped(self) -> bool:
        """Whether the program dropped all gradients of this step."""
        return all(self._is_dropped(i) for i, where in enumerate(self._where) if where in (_Where.held, _Where.left))

    def _forget(self, i: int) -> None:
        """Drops a gradient that is held."""
        if self._sums.values[i] is None and not self._passes[i]:
            return
        if self._passes[i] == self._expected() and self._passes[i]:
            self._missing[self._block_of[i]] += 1
        self._sums.values[i] = None
        self._passes[i] = 0

    def _look(self, i: int) -> None:
        """Acts on what the program did with the gradient."""
        p = self.params[i]
        grad, where = p.grad, self._where[i]
        if where is _Where.left and (grad is None or i in self._zeroed):
            if not self._all_dropped():
                raise RuntimeError(
                    f"The gradient of {self.names[i]} was dropped when it had left, and others were not: "
                    f"{self.sentence_about(i)}"
                )
            self.give_up()
        elif grad is None and where is _Where.held and self._all_dropped():
            self.give_up()
        elif grad is None:
            self._forget(i)
            self._where[i] = _Where.nowhere
        elif not isinstance(grad, Departed):
            if where is _Where.left:
                raise RuntimeError(f"p.grad was set when the gradient of this step had left. {self.sentence_about(i)}")
            self._forget(i)
            self._sums.values[i] = grad
            self._own.add(i)
            self._where[i] = _Where.held

    def _check(self, i: int, gradient) -> None:
        if gradient.is_sparse:
            raise ValueError(f"The gradient of {self.names[i]} is sparse: make it dense (sparse=False of Embedding).")
        if gradient.dtype not in DTYPES:
            raise RuntimeError(
                f"{self.names[i]} became {gradient.dtype} after training began: convert the model before the "
                "optimizer is made."
            )

    # --- During backward ---

    def _drop_before_pass(self) -> None:
        if _Where.held in self._where and self._all_dropped():
            self.give_up()

    def _note(self, i: int) -> None:
        """A gradient has come."""
        self._where[i] = _Where.held
        self.is_given_up = False

    def _expected(self) -> int:
        """Backward passes after which a gradient leaves; 0: in step(), as before the start, which may come
        that late.
        """
        return 0 if self._cautious or self._conductor is None else self._learned

    def _before(self, i: int, _) -> None:
        """A gradient of the parameter comes, to p.grad or, for torch.autograd.grad(), to the program. Runs on a thread
        of autograd."""
        with DisableTorchFunctionSubclass():
            self._look(i)
            self._aside.put(i)

    @torch.no_grad()
    def _take(self, i: int, _) -> None:
        """Takes a gradient that is ready. Runs on a thread of autograd."""
        with DisableTorchFunctionSubclass():
            with undivided():
                self._take_one(i)
            block = self._block_of[i]
            if self._missing[block] == 0 and not self._is_put[block]:
                self._put(block)

    def _take_one(self, i: int) -> None:
        p, block = self.params[i], self._block_of[i]
        gradient, p.grad = p.grad, self._stand_in(i)
        if self._where[i] in (_Where.used, _Where.spoilt):
            self._where[i] = _Where.spoilt
            return
        if self._is_put[block]:
            raise RuntimeError(sentences.comes_once_more(self.names[i], self._expected(), self._sums.is_streamed))
        if self._passes[i] and i in self._older_hooks:
            raise RuntimeError(sentences.seen_by_older_hook(self.names[i]))
        self._check(i, gradient)
        gradient = gradient.detach()
        if gradient.is_cuda:
            self._streams[block].add(torch.cuda.current_stream(gradient.device))
        expected = self._expected()
        self._sums.add(i, gradient, expected - self._passes[i] - 1 if expected else None)
        self._note(i)
        self._passes[i] += 1
        self.is_collecting = True
        if expected and self._passes[i] == expected:
            self._missing[block] -= 1

    def _stand_in(self, i: int) -> Departed:
        one, p = self._departed[i], self.params[i]
        if one is None or one.dtype != p.dtype or one.device != p.device or one.shape != p.shape:
            one = self._departed[i] = Departed(p, self, i)
        return one

    def _absent(self) -> list:
        """Parameters without a gradient so far."""
        return [i for i, where in enumerate(self._where) if where is _Where.nowhere]

    def _tell(self, in_backward: bool) -> None:
        step = self._describe()
        self._parameters.bring_all()
        self._parameters.write_back(is_thorough=self._looks_late or not in_backward or not self._parameters.is_looked)
        absent = [i for i in self._absent() if not in_backward or not self.params[i].requires_grad]
        with undivided():
            self._conductor.begin_step(*step, absent, False)
            self.told = step
            _ranks.enter_step(self._conductor)

    def _put(self, block: int, in_backward: bool = True) -> None:
        """Hands a block's gradients to the engine."""
        if self.told is None:
            self._tell(in_backward)
        with undivided():
            with self._sums.leaving(block) as gradients:
                self._sums.left(block, self._hand_over(block, gradients))
            self._is_put[block] = True
            self._parameters.put(block)
            for i in self.blocks[block].tensors:
                if self._where[i] is not _Where.nowhere:
                    self._where[i] = _Where.left

    def _hand_over(self, block: int, gradients: list) -> int:
        """Returns the engine's number of this work."""
        tensors = self.blocks[block].tensors
        for i, gradient in zip(tensors, gradients):
            if gradient is not None and gradient.device != self._device:
                raise RuntimeError(
                    f"Parameter {self.names[i]} moved from {self._device} to {gradient.device} after training began: "
                    "move the model before the optimizer's first use."
                )
        for stream in self._streams[block]:
            torch.cuda.current_stream(self._device).wait_stream(stream)
        place = self._device if self._on_gpu else "cpu"
        # A gradient that the program holds, too, is copied: it may change before the engine has read it.
        gradients = [
            None if g is None else g.to(place, copy=not self.takes or i in self._own).contiguous()
            for i, g in zip(tensors, gradients)
        ]
        made = self._event() if self._on_gpu else None
        for gradient in gradients if made else []:
            if gradient is not None:  # not reused before the engine has read it
                gradient.record_stream(self._encodes)
        pieces = [(0, "fp32") if g is None else (g.data_ptr(), DTYPES[g.dtype]) for g in gradients]
        return self._conductor.put(block, pieces, self._factor, made.cuda_event if made else 0, (gradients, made))

    # --- The end of a step ---

    def is_dropped(self) -> bool:
        """Whether step() is called for a step that the program has dropped, which all ranks have given up by then."""
        self.give_up_dropped()
        return self.is_given_up and all(map(self._is_nothing, self.params))

    def _is_nothing(self, p) -> bool:
        """Whether the parameter has no gradient. On one rank, one that was set to zero counts, as with PyTorch."""
        if p.grad is None or self._conductor.is_alone:
            return p.grad is None
        return isinstance(p.grad, Departed) or not p.grad.any()

    def hand_over_all(self, kept) -> None:
        """All gradients are there. ``kept``: what is durable with the step, see Program.collect()."""
        for i in range(len(self.params)):
            self._look(i)
            if not self.takes:
                self._where[i] = _Where.nowhere if self.params[i].grad is None else _Where.held
        again = [name for name, where in zip(self.names, self._where) if where in (_Where.used, _Where.spoilt)]
        if again:
            raise RuntimeError(sentences.used_once_more(again[0]))
        self.clipping.check()
        for i, gradient in self._sums.here():
            if self._where[i] is _Where.held:
                self._check(i, gradient)
        if len(self._absent()) == len(self.params):
            warnings.warn(sentences.NOTHING_CAME, stacklevel=6)
        if self.told is None:
            self._tell(in_backward=False)
        elif self.told != self._describe():
            raise RuntimeError(
                "The learning rate or another setting changed between backward() and step(), when gradients had "
                "left: change it before backward(), as after step() by a scheduler."
            )
        for block in reversed(range(len(self.blocks))):
            if not self._is_put[block]:
                self._put(block, in_backward=False)
        if kept is not None:
            about, memory, tensors = kept
            made = self._event()
            self._conductor.keep(about, memory, made.cuda_event if made else 0, (tensors, made))

    def end_step(self) -> None:
        """The engine has all gradients."""
        self._conductor.end_step(self._absent(), False, *self._parameters.places())
        self._after(_Where.used)
        passes = max(self._passes, default=0)
        self._learned = self._fixed or max(passes, self._learned)
        self._cautious = max(self._cautious - 1, 0)
        self._aside.clear()  # what an error in a pass has left
        self._begin_counting()

    def _after(self, where: _Where) -> None:
        for i in range(len(self.params)):
            if self._where[i] in (_Where.left, _Where.held, _Where.zero) or isinstance(self.params[i].grad, Departed):
                self._where[i] = where if self.takes and self.params[i].grad is not None else _Where.nowhere
                if self._where[i] is _Where.used and not isinstance(self.params[i].grad, Departed):
                    self.params[i].grad = self._stand_in(i)  # in place of a gradient of the program's own

    def give_up(self) -> None:
        """Ends a step whose gradients the program dropped: on all ranks it does not take place."""
        told, zeroed = self.told is not None, set(self._zeroed)
        with undivided():
            for i, where in enumerate(self._where):
                if where in (_Where.held, _Where.left):
                    self._where[i] = _Where.zero if i in zeroed else _Where.nowhere
            put = list(self._is_put)
            self._begin_counting()
            self.is_given_up = True
            if told:
                self._give_up_told(put)
        if self._conductor is None:
            self._given_up_early += 1
        elif not told and not self._conductor.is_alone:
            self._give_up_untold()

    def _give_up_told(self, put: list) -> None:
        """``put``: whether the engine has the gradients of each block."""
        self._cautious = _CAUTIOUS_STEPS if self._may_wait else 0
        for block in reversed(range(len(self.blocks))):
            if not put[block]:
                made = self._event() if self._on_gpu else None
                nothing = [(0, "fp32")] * len(self.blocks[block].tensors)
                self._conductor.put(block, nothing, self._factor, made.cuda_event if made else 0, (made,))
        self._end_given_up()

    def _give_up_untold(self) -> None:
        """The other ranks may have told the engine of the step."""
        self._parameters.write_back(is_thorough=self._looks_late)
        self._conductor.begin_step(*self._describe(), [], True)
        self._end_given_up()

    def _end_given_up(self) -> None:
        self._conductor.end_step([], True, [], 0, 0)
        self._parameters.end_step()

    def give_up_dropped(self) -> None:
        """Ends a step that the program has dropped by module.zero_grad(), which the optimizer does not see."""
        is_here = self.told is not None or _Where.held in self._where
        if is_here and current_graph_task_id() == -1 and self._all_dropped():
            self.give_up()

    def _event(self):
        """Over when the GPU has done what it was given so far; None without a GPU."""
        if self._device.type != "cuda":
            return None
        made = torch.cuda.Event()
        made.record(torch.cuda.current_stream(self._device))
        return made

    @torch.no_grad()
    def drop(self, to_none: bool) -> None:
        """zero_grad(): drops all gradients of this step."""
        with DisableTorchFunctionSubclass():
            stand = [] if to_none else [i for i, p in enumerate(self.params) if p.grad is not None]
            if self.told is not None or _Where.held in self._where:
                self.give_up()
            self._where = [_Where.nowhere] * len(self.params)
            self._aside.clear()
            for p in self.params if to_none else []:
                p.grad = None
            for i in stand:
                if self.takes:
                    self.params[i].grad = self._stand_in(i)
                    self._where[i] = _Where.zero
                else:
                    self.params[i].grad = torch.zeros_like(self.params[i].grad)
