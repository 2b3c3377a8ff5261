"""Trains models whose parameters do not fit the GPU: layers compute one after another in a few slots. Called by
_optimizer.py and _session.py."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import warnings
import weakref

import torch

from .. import _engine
from .._torch_private import DisableTorchFunctionSubclass
from . import inputs, left, recompute
from .._gradients.room import Memory, capacity_of, memory_of
from .activations import Activations
from .._model import composed, watch
from .._model.groups import plain_name
from .._pinned import resident_bytes
from .._storage import folder_for
from .._weakly import weakly
from .keeping import Keeping
from .slots import HostMemory, Layer, Slots, layers_with_params
from .work import wrap
from .spill import Spill
from .stream import FEWEST_SLOTS, Stream
from .window import State, Vector, Window


def _uses_of(module, pairs: list) -> list:
    names = {id(one): plain_name(name) for name, one in module.named_modules()}
    streamed = {id(p) for _, mine in pairs for p in mine}
    return [
        recompute.Uses(names[id(layer)], mine, [p for p in layer.parameters() if id(p) not in streamed])
        for layer, mine in pairs
    ]


def taken_bytes(conductor) -> int:
    """Host memory of this process, with that of state which is about to lie there."""
    return resident_bytes() + conductor.facts()["memory_bytes"]


class Streaming:
    """Streams a module's layers while an optimizer trains it."""

    def __init__(
        self, settings: Stream, module: torch.nn.Module | None, params: list, block_of: list, dtype: torch.dtype
    ):
        """``params``: the trained ones; ``block_of``: their blocks in the engine's vector, whose format is
        ``dtype``.
        """
        if module is None:
            raise ValueError("stream= needs the module: make the optimizer from it, or from nearstep.groups(module).")
        pairs = layers_with_params(module)
        if not pairs:
            raise ValueError(
                "stream= finds no layers: they are the entries of a ModuleList, a ModuleDict or a nested Sequential."
            )
        if any(isinstance(layer, torch.jit.TopLevelTracedModule) for layer, _ in pairs):
            raise ValueError(
                "stream= cannot pass layers of torch.jit.trace() through slots: give it the layers themselves, or "
                "those of torch.jit.script()."
            )
        number = {id(p): i for i, p in enumerate(params)}
        others = {p.dtype for _, mine in pairs for p in mine if id(p) in number} - {dtype}
        if others:
            raise ValueError(
                f"stream= needs trained parameters of one format, and some are {others.pop()} beside {dtype}: "
                "convert the model to one."
            )
        self._settings, self._module = settings, module
        self._numbers = {id(p): number.get(id(p)) for _, mine in pairs for p in mine}
        names = {id(p): name for name, p in module.named_parameters() if id(p) in self._numbers}
        for p in (p for _, mine in pairs for p in mine):
            composed.refuse_streamed(names[id(p)], p)
        tensors = [(layer, [one for p in mine for one in composed.tensors_of(p)]) for layer, mine in pairs]
        self._layers = [
            Layer(
                layer,
                mine,
                [number.get(id(p)) for p in mine],
                sorted({block_of[number[id(p)]] for p in mine if id(p) in number}),
            )
            for layer, mine in tensors
        ]
        self._frozen = HostMemory([p for _, mine in tensors for p in mine if id(p) not in number])
        self._slot_bytes = max(layer.slot_bytes for layer in self._layers)
        self._slots: Slots | None = None
        self._is_measuring = self._is_limited = False
        self._last = None
        self._following: dict = {}  # what was computed after a layer's forward or backward
        self._uses = _uses_of(module, pairs)
        self._formats = [[(names[id(p)], p, p.dtype) for p in mine] for _, mine in pairs]
        inputs.refuse(names, self)
        self._works = [wrap(weakref.ref(self), layer.module, i) for i, layer in enumerate(self._layers)]

    def numbers(self) -> set:
        """Returns the numbers (in layout order) of the trained parameters that pass through slots."""
        return set(self._numbers.values()) - {None}

    def devices(self, params: list) -> set:
        """Returns the devices on which layers compute. ``params``: the trained parameters. An earlier stream may have
        left layers in host memory."""
        outside = {p.device for p in self._module.parameters() if id(p) not in self._numbers}
        of_layers = {p.device for p in params if id(p) in self._numbers and p.device.type != "cpu"}
        return outside | of_layers or {p.device for p in params}

    @property
    def is_from_storage(self) -> bool:
        """Whether trained parameters stay in storage."""
        return self._settings.host_memory_gb is not None

    def prepare(self, conductor, parameters, device: torch.device, sums_bytes: int) -> None:
        """Raises ValueError if the memory does not suffice, or if the model was converted. Takes host memory for frozen
        parameters and for the window. ``sums_bytes``: host memory for sums of gradients."""
        for number in range(len(self._layers)):
            self._refuse_converted(number, ValueError, "the optimizer was made")
        self._conductor, self._parameters, self._device = conductor, parameters, device
        kept = [p for p in self._module.parameters() if id(p) not in self._numbers] + list(self._module.buffers())
        self._kept_bytes = sum(one.numel() * one.element_size() for one in kept)
        self._engine_bytes = conductor.facts()["gradient_bytes"]
        least = self._kept_bytes + self._engine_bytes + FEWEST_SLOTS * self._slot_bytes
        if self._settings.gpu_memory_gb is not None and least > self._limit:
            raise ValueError(
                f"gpu_memory_gb={self._settings.gpu_memory_gb:g} is too small: {self._kept_bytes / 1e9:.3g} GB of "
                "parameters stay on the device, "
                f"two slots take {2 * self._slot_bytes / 1e9:.3g} GB and gradients {self._engine_bytes / 1e9:.3g} "
                "GB. Give more than "
                f"{least / 1e9:.3g} GB; activations come on top."
            )
        self._frozen.reserve(device)
        self._source, self._inputs_room, self._spill = Vector(conductor), math.inf, None
        if self.is_from_storage:
            trained = [layer for layer in self._layers if layer.is_trained]
            reads_state = conductor.can_copy_parameters()
            two = 0 if reads_state else Window.least_bytes(trained, parameters)
            left = self._host_bytes_left(sums_bytes, two)
            of_window = two if conductor.facts()["memory_bytes"] else left / 2  # in memory, layers need no other
            self._inputs_room = left - of_window
            self._source = (
                State(conductor, parameters)
                if reads_state
                else Window(trained, of_window, conductor, parameters, device)
            )
            if not all(_engine.lies_in_memory(folder_for(path)) for path in conductor.paths):
                self._spill = Spill(conductor.paths, device)

    def _refuse_converted(self, number: int, error: type, since: str) -> None:
        """``number``: of a layer."""
        with DisableTorchFunctionSubclass():
            for name, p, dtype in self._formats[number]:
                if p.dtype != dtype:
                    raise error(
                        f"{name} became {p.dtype} after {since}, and stream= has slots for {dtype}: convert the "
                        "model before the optimizer is made, or after close()."
                    )

    def _host_bytes_left(self, sums_bytes: int, two: int) -> float:
        """``two``: bytes of two layers in the window."""
        gb = self._settings.host_memory_gb
        taken = taken_bytes(self._conductor)
        kept = self._parameters.kept_bytes
        slots = (
            (self._first_slots() + 1) * self._slot_bytes + kept if self._device.type == "cpu" else 0
        )  # and gradients
        if taken + kept + sums_bytes + slots + two > gb * 1e9:
            sums = (
                f"sums of gradients of several backward passes (accumulation=1 needs none) {sums_bytes / 1e9:.3g} GB, "
                if sums_bytes
                else ""
            )
            sums += f"slots and gradients {slots / 1e9:.3g} GB, " if slots else ""
            raise ValueError(
                f"host_memory_gb={gb:g} is too small: the process and state in memory take {taken / 1e9:.3g} GB, "
                f"{sums}parameters that "
                f"are in no layer {kept / 1e9:.3g} GB and "
                f"two layers {two / 1e9:.3g} GB. Give at least "
                f"{math.ceil((taken + kept + sums_bytes + slots + two) / 1e8) / 10:g} GB; activations on the host "
                "come on top."
            )
        return gb * 1e9 - taken - kept - sums_bytes - slots

    def _first_slots(self) -> int:
        """Returns the number of slots at the start. Without a GPU, slots are in host memory, and layers from storage
        get no more than two."""
        if self._settings.slots is not None:
            count = self._settings.slots
        elif self._device.type == "cuda" or self.is_from_storage:
            count = FEWEST_SLOTS
        else:
            count = int((self._limit - self._kept_bytes) // self._slot_bytes)
        return min(count, len(self._layers))

    @property
    def _limit(self) -> float:
        return self._settings.gpu_memory_gb * 1e9

    def home(self, p):
        """Host memory for a frozen parameter; None if it is not streamed."""
        return self._frozen.of(p)

    def open(self) -> None:
        """All streamed parameters are in host memory or in storage from here on."""
        values = self._parameters.values
        self._frozen.take()
        for layer in self._layers:
            layer.homes = [self._frozen.of(p) if i is None else values[i] for i, p in zip(layer.numbers, layer.params)]
            layer.outside = list(layer.homes)
        on_host, measure = self._settings.activations == "host", None
        if self._settings.slots is None and self._device.type == "cuda":
            self._is_measuring = self._is_limited = True
            on_host = self._settings.activations != "gpu"
            torch.cuda.empty_cache()  # the layers may have been there
            torch.cuda.reset_peak_memory_stats(self._device)
            measure = functools.partial(memory_of, self._device) if self._settings.activations is None else None
        self._slots = Slots(self._layers, self._first_slots(), self._device, self._source, self._watch)
        for layer in self._layers:
            self._watch(layer)
        self._activations = Activations(self._device, on_host, self._inputs_room, self._spill)
        self._keeping = Keeping(measure, self._capacity)
        if not self._is_measuring:
            self._say()

    def _capacity(self, now: Memory) -> float:
        return capacity_of(now, self._limit, self._engine_bytes)

    def _say(self, more: str = "") -> None:
        if self._conductor.rank == 0:
            where = "in host memory" if self._activations.on_host or self._device.type == "cpu" else "on the GPU"
            if self._activations.on_host and self._spill is None and self._inputs_room < math.inf:
                where += f" up to {max(0, self._inputs_room) / 1e9:.3g} GB, and then on the GPU"
            print(
                f"nearstep: {len(self._layers)} layers of at most {self._slot_bytes / 1e9:.3g} GB "
                f"{self._source.describe()}pass through "
                f"{len(self._slots)} slots, "
                f"{self._kept_bytes / 1e9:.3g} GB of other parameters stay, activations between layers wait "
                f"{where}{more}",
                file=sys.stderr,
            )

    def _give_back(self) -> None:
        """Gives back what PyTorch holds for nobody where it takes more than the limit: the memory of a stream that
        copies is of no use to others. Layers keep so much less from here on."""
        now = memory_of(self._device)
        excess = now.reserved - self._capacity(now)
        if excess > 0:
            torch.cuda.empty_cache()
            self._keeping.leave(excess)

    def _decide(self, on_the_way: int) -> None:
        """Uses the memory that the first step left. ``on_the_way``: bytes that sums of gradients may take in a faster
        one."""
        self._is_measuring = False
        taken = torch.cuda.max_memory_reserved(self._device) + self._engine_bytes  # with what is lost between tensors
        left = self._limit - taken - on_the_way
        if self._settings.activations is None and left >= self._activations.most_bytes:
            left -= self._activations.most_bytes
            self._activations.on_host = False
        kept, kept_bytes = self._keeping.decide(self._limit - left - self._engine_bytes, left)
        left -= kept_bytes
        count = FEWEST_SLOTS + max(0, int(left // self._slot_bytes))
        self._slots.grow(min(count, len(self._layers)))
        more = f"; the first step took {taken / 1e9:.3g} GB of {self._settings.gpu_memory_gb:g}"
        if self._keeping.mean_bytes:
            more += (
                f"; {kept} layers keep all activations ({kept_bytes / 1e9:.3g} GB), and the others compute again in "
                "backward; each GB more would spare "
                f"{min(len(self._layers) - kept, 1e9 / self._keeping.mean_bytes):.2g} of these"
            )
        self._say(more)
        if taken > self._limit:
            warnings.warn(
                f"A step takes {taken / 1e9:.3g} GB, more than gpu_memory_gb={self._settings.gpu_memory_gb:g}: give "
                "fewer tokens at a time."
            )

    def run(self, number: int, forward, arguments, settings):
        """A call of a layer."""
        layer = self._layers[number]
        if torch.jit.is_tracing() or getattr(torch.compiler, "is_exporting", bool)():  # since PyTorch 2.7
            raise RuntimeError(
                "A streamed model cannot be traced or exported, because its parameters pass through slots: take "
                "another model that has loaded its state_dict(), or call close() before."
            )
        self._parameters.refuse_between_steps(self._trained(layer))
        self._refuse_converted(number, RuntimeError, "training began")
        if not torch.is_grad_enabled():
            with self._at(number, False):
                return forward(*arguments, **settings)
        layer.check_module()
        if number == 0 and self._is_limited and not self._is_measuring:
            self._give_back()
        return recompute.run(
            forward,
            arguments,
            settings,
            at_layer=functools.partial(self._at, number),
            keep=self._activations.keep,
            keeping=self._keeping,
            number=number,
            slot_memory=lambda: layer.slot.memory,
            uses=self._uses[number],
            device=self._device,
        )

    @contextlib.contextmanager
    def _at(self, number: int, is_backward: bool):
        """Has the layer in a slot, and begins to load what was computed next before: at first, its neighbour."""
        layer, now = self._layers[number], (number, is_backward)
        self._following[self._last] = now
        self._last = now
        self._slots.enter(layer)
        for p in layer.params:
            watch.release(p)
        self._prepare_following(now)
        try:
            yield
        finally:
            self._slots.leave(layer)
            self._watch(layer)

    def _trained(self, layer: Layer) -> list:
        """Returns the numbers of the layer's trained parameters."""
        return [number for number in layer.numbers if number is not None]

    def _watch(self, layer: Layer) -> None:
        """Whoever uses one of the layer's parameters gets it in host memory."""
        self._parameters.watch(self._trained(layer))
        for p, number in zip(layer.params, layer.numbers):
            if number is None and type(p) is torch.nn.Parameter:  # others may act themselves when they are used
                watch.watch(p, weakly(self.empty))

    def _prepare_following(self, now: tuple) -> None:
        following = []
        for _ in range(self._source.ahead):
            number, is_backward = now
            now = self._following.get(now, (number + (-1 if is_backward else 1), is_backward))
            if not 0 <= now[0] < len(self._layers):
                break
            following.append(self._layers[now[0]])
        for layer in following:
            self._slots.expect(layer)
        if following:
            self._slots.prefetch(following[0])

    @property
    def seconds(self) -> dict:
        """Seconds for which the last step read parameters from storage and waited for them."""
        return self._source.seconds

    @property
    def is_open(self) -> bool:
        return self._slots is not None

    def _read_state(self) -> None:
        """State in memory may be pinned by now, so that the GPU reads layers there and needs no window."""
        if isinstance(self._source, Window) and self._conductor.can_copy_parameters():
            self._source.close()
            self._source = State(self._conductor, self._parameters)
            self._slots.load_from(self._source)

    def end_step(self) -> None:
        """Trained layers have new values from here on."""
        self._slots.end_step()

    def after_step(self, on_the_way: int) -> None:
        """``on_the_way``: bytes of GPU memory that sums of gradients take at most on their way to the host and back."""
        self._read_state()
        fewer = self._keeping.end_step()
        if fewer > 0 and self._conductor.rank == 0:
            print(
                f"nearstep: GPU memory is short: {fewer} layers more than in the step before computed again in "
                "backward",
                file=sys.stderr,
            )
        if self._is_measuring:
            self._decide(on_the_way)

    def empty(self) -> None:
        """All streamed parameters are in host memory afterwards, until a layer computes."""
        self._slots.empty()

    def close(self) -> None:
        """Leaves a plain module, whose layers are in host memory."""
        for work in self._works:
            work.give_back()
        if self.is_open:
            self.empty()
            for layer in self._layers if self._device.type == "cuda" and not self.is_from_storage else ():
                left.mark(layer.module)
                composed.rebuild(layer.module)
            self._slots = None
            self._source.close()
            if self._spill is not None:
                self._spill.close()
        for layer in self._layers:
            for p in layer.params:
                watch.release(p)
        self._frozen.close()
