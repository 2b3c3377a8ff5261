"""Gives the trained parameters of a module the engine's new values. Used by _session.py."""

from __future__ import annotations

import torch

from .._torch_private import DisableTorchFunctionSubclass, current_graph_task_id
from . import watch
from .outside import outside_program
from .departed import Departed
from .digests import Digests
from .empty import fill, is_empty, make_empty
from .groups import DTYPES
from .stored_values import StoredValues
from .._undivided import undivided
from .._weakly import weakly

_FEW = 3  # names in a message


def _named(names: list) -> str:
    return ", ".join(names[:_FEW]) + (", ..." if names[_FEW:] else "")


class Parameters:
    """Each parameter has a value in the engine's vector, which is in host memory. A parameter is a copy of it, or, if
    it was empty and is on the CPU, the value itself. Of one process's parameters on a GPU, the GPU itself may write new
    values to them, and then the vector keeps old ones. A streamed one is its value, too, unless its layer is in a slot.
    Where values stay in storage, the vector has memory only for those that were read there since the last step.

    Until a parameter has the values of the last step it is watched, so that any use brings them. What the program
    writes between two steps is found by digests, and becomes the master's value."""

    def __init__(self, params: list, names: list, blocks: list, conductor, vector, device: torch.device, streaming):
        """``blocks``: lists of numbers of parameters; ``streaming``: see Streaming, or None."""
        self._streamed = streaming.numbers() if streaming else set()
        self._streaming = streaming
        self._conductor = conductor
        self.device = device
        self._params, self._names, self._blocks = params, names, blocks
        self._block_of = [block for block, tensors in enumerate(blocks) for _ in tensors]
        self._vector, self._address, self.dtype = vector, vector.data_ptr(), vector.dtype
        self.values, self._offsets = [], []
        at = 0
        for p in params:
            self.values.append(vector[at : at + p.numel()].view(p.shape))
            self._offsets.append(at)
            at += p.numel()
        self.is_from_storage = streaming is not None and streaming.is_from_storage
        self.stored = StoredValues(
            conductor, vector, self.values, self._offsets, self._streamed if self.is_from_storage else None
        )
        self._was_empty = [is_empty(p) for p in params]
        self._is_brought = [True] * len(blocks)
        self._is_fetched = [True] * len(blocks)
        self._is_put = [False] * len(blocks)  # its gradients have left, and its values may be those of the next step
        self._digests = Digests(params, device)
        self._written: list = []  # by the program, as far as known
        self.is_looked = False  # whether look_for_written() was called in this step
        self._lost: list = []  # names
        self._said_lost = False  # in this step
        self._watchers = [weakly(self._use, i) for i in range(len(params))]
        self.give_up_dropped = lambda: None  # ends a step whose gradients the program has dropped
        self._places: dict = {}  # memory that an update may write, by number, until the parameter was fetched
        self._were_places: set = set()  # numbers of those of the last update
        self._may_send = False  # the last step's values to other ranks
        self._may_share = device.type == "cuda" and not conductor.is_alone  # the vector, with ranks of the same node
        if device.type == "cuda":
            # A block is copied while the digests of others are computed.
            self._looks, self._copies, self._notes = (torch.cuda.Stream(device) for _ in range(3))
            self._copied = [torch.cuda.Event() for _ in blocks]
            self._unused = torch.cuda.Event()

    # --- Where the values are ---

    @property
    def were_empty(self) -> list:
        """Numbers of the parameters that were empty."""
        return [i for i, was_empty in enumerate(self._was_empty) if was_empty]

    def is_value(self, i: int) -> bool:
        """Whether the parameter is the engine's value itself. It is a copy when the program has converted it."""
        with DisableTorchFunctionSubclass():
            return i in self._streamed or self._params[i].data_ptr() == self.values[i].data_ptr()

    @property
    def are_values(self) -> bool:
        """Whether any parameter is in the engine's memory."""
        return any(map(self.is_value, range(len(self._params))))

    @property
    def are_kept(self) -> bool:
        """Whether the program keeps the engine's memory after its end. Parameters in storage are empty then."""
        return self.are_values and not self.is_from_storage

    # --- Values in storage ---

    @property
    def kept_bytes(self) -> int:
        """Bytes of host memory for parameters that are in no layer: they lie in the vector, or are read there one by
        one and copied to the GPU."""
        kept = [value.nbytes for i, value in enumerate(self.values) if i not in self._streamed]
        return max(kept, default=0) if self.device.type == "cuda" else sum(kept)

    def _load_kept(self, block: int) -> None:
        self.stored.load(i for i in self._blocks[block] if i not in self._streamed and self.is_value(i))

    def _memory(self, i: int):
        """Returns memory for a parameter that was empty."""
        p, value = self._params[i], self.stored.start_value(i)
        if i in self._streamed or (self.device.type == "cpu" and p.dtype == value.dtype):
            return value
        return torch.empty_like(p, memory_format=torch.contiguous_format)

    def fill_empty(self) -> list:
        """Gives memory to empty parameters. Returns what give_back() needs."""
        memory = [self._memory(i) for i in self.were_empty]
        return [fill(self._params[i], data) for i, data in zip(self.were_empty, memory)]

    def keep_start(self) -> bool:
        """Whether the parameters have the values that training starts from, so that nobody reads the vector while these
        are written to the state, or only computes with them."""
        if (
            self.is_from_storage
            or not self._conductor.is_alone
            or not all(self._conductor.holds(DTYPES[p.dtype]) for p in self._params)
        ):
            return False
        values = [i for i in range(len(self._params)) if self.is_value(i)]
        if not self._streamed.issuperset(values):
            return False
        for i in values:
            self._params[i].data = self.values[i]
        return True

    @torch.no_grad()
    def take_start(self) -> None:
        """Gives the parameters the values that training starts from, which the state has."""
        self.stored.unload()
        self.stored.forget_files()
        for block in range(len(self._blocks)):
            self._load_kept(block)
        for i, p in enumerate(self._params):
            if self.is_value(i):
                p.data = self.values[i]
                continue
            value = self.stored.value(i)
            # Equal values stay: a live graph may hold the tensor.
            if self._was_empty[i] or not torch.equal(p, value.to(p.device, p.dtype)):
                p.copy_(value)

    def note_start(self) -> None:
        for block in range(len(self._blocks)):
            self._note(block)
        self.watch(self._streamed)

    # --- Bringing the values of the last step ---

    def _copies_of(self, block: int) -> list:
        return [i for i in self._blocks[block] if not self.is_value(i)]

    def _note(self, block: int) -> None:
        self._digests.note([i for i in self._blocks[block] if i not in self._streamed])

    @torch.no_grad()
    def _fetch(self, block: int) -> None:
        """Starts to update the block's parameters."""
        if self._is_fetched[block]:
            return
        copied = self._copies_of(block)
        if self.device.type == "cuda":
            on_host = {i: self._conductor.elements_on_host(i) for i in copied if i in self._places}
            with torch.cuda.stream(self._looks):
                # places() has looked at those of which the GPU has written a part since.
                self._digests.before_overwriting(
                    [i for i in copied if i not in on_host or on_host[i] == [(0, self.values[i].numel())]]
                )
            self._copies.wait_stream(self._looks)
            with torch.cuda.stream(self._copies):
                for i in copied:
                    self._copy(i, on_host.get(i, []))
            self._notes.wait_stream(self._copies)
            with torch.cuda.stream(self._notes):
                self._note(block)
            self._copied[block].record(self._notes)
        else:
            self._lost += [self._names[i] for i in self._digests.before_overwriting(copied)]
            for i in copied:
                self._params[i].copy_(self.stored.value(i))
            self._note(block)
        self._is_fetched[block] = True

    def _copy(self, i: int, on_host: list) -> None:
        """Copies to the GPU what the GPU has not written itself: ranges of elements, or all if it had no place."""
        p, value, place = self._params[i], self.stored.value(i), self._places.pop(i, None)
        if place is None:
            p.copy_(value, non_blocking=True)
            return
        for begin, end in on_host:
            place.view(-1)[begin:end].copy_(value.view(-1)[begin:end], non_blocking=True)
        if p.data_ptr() != place.data_ptr():  # the program has given it other memory
            p.copy_(place)
            place.record_stream(self._copies)

    @torch.no_grad()
    def places(self) -> tuple:
        """Returns where the GPU may write the values of the step that ends: numbers and addresses; a CUDA event that is
        over when nobody reads the old values; and the address of a flag on the GPU, set by then if the program has
        changed any value."""
        if self.device.type != "cuda" or self._streaming is not None or not self._conductor.is_alone:
            return [], 0, 0
        with DisableTorchFunctionSubclass():
            self._places = {i: p.detach() for i, p in enumerate(self._params) if self._is_like_value(i)}
            numbers = list(self._places)
            self._looks.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._looks):
                self._digests.before_overwriting(numbers)
                are_written = self._digests.has_lost(numbers)
                self._unused.record(self._looks)
            self._were_places = set(numbers)
            for i in numbers:  # graphs that were made before have the old values
                torch.autograd.graph.increment_version(self._params[i])
            return (
                [(i, place.data_ptr()) for i, place in self._places.items()],
                self._unused.cuda_event,
                0 if are_written is None else are_written.data_ptr(),
            )

    def _is_like_value(self, i: int) -> bool:
        """Whether the parameter is another tensor with the value's elements in the same order."""
        p, value = self._params[i], self.values[i]
        return (
            not self.is_value(i)
            and p.is_contiguous()
            and p.numel() > 0
            and (p.device, p.dtype, p.shape) == (self.device, value.dtype, value.shape)
        )

    def bring(self, block: int) -> None:
        """Updates the block's parameters to the last step, for work that the device receives from now on."""
        if self._is_brought[block]:
            return
        with outside_program():
            self._conductor.await_block(block)
            with undivided():
                self._load_kept(block)
                self._fetch(block)
                self.release(i for i in self._blocks[block] if i not in self._streamed)
                if self.device.type == "cuda":
                    torch.cuda.current_stream(self.device).wait_event(self._copied[block])
                self._is_brought[block] = True
            following = block + 1
            if (
                self.device.type == "cuda"
                and following < len(self._blocks)
                and not self._is_fetched[following]
                and self._conductor.has_block(following)
                and not self.is_from_storage
            ):
                self._fetch(following)  # while the device computes this block
            self._raise_lost()

    def wait_in(self, stream, block: int) -> None:
        """Work that the stream of the GPU gets from now on sees the block's values, which bring() brings."""
        if self.device.type == "cuda":
            stream.wait_event(self._copied[block])

    def await_sent(self) -> None:
        """Waits until this rank sends no values from the vector, so that the program may write them."""
        if self._may_send and not any(self._is_put):
            self._may_send = False
            if self.are_values:
                self._conductor.finish()

    def bring_all(self) -> None:
        for block in range(len(self._blocks)):
            self.bring(block)

    def leave(self) -> None:
        """The model goes on without its optimizer: with the values of the last step, but for those of a step that was
        left.
        """
        if not any(self._is_put):
            self.bring_all()
        if self._streaming:
            self._streaming.close()

    @outside_program()
    def _use(self, i: int) -> None:
        """The program uses the parameter."""
        block = self._block_of[i]
        self._refuse_put(i)
        self.bring(block)
        self.await_sent()
        if i in self._streamed:
            self._conductor.await_start()  # the program may write
            self.stored.load([i])
            self._streaming.empty()
            self._give_own_memory(i)
            if not self._digests.is_known(i):  # else what the program wrote since would be the last step's value
                self._digests.note([i])
            self.release([i])

    def _give_own_memory(self, i: int) -> None:
        """Gives a streamed parameter memory of its own until the end of the step, if ranks share the vector: the others
        would see a change that the program makes there, and make it once more."""
        if self._may_share and self._params[i].data_ptr() == self.values[i].data_ptr():
            self._params[i].data = self.values[i].clone()

    def _refuse_put(self, i: int, advice: str = "") -> None:
        """Raises RuntimeError if the parameter is to be used between two steps."""
        block = self._block_of[i]
        if self._is_put[block] and self.is_value(i):
            self.give_up_dropped()
        if self._is_put[block] and self.is_value(i):
            raise RuntimeError(
                f"{self._names[i]} is between two steps, as are all parameters, since backward() has begun the "
                f"update: call step() before you read them or change them.{advice}"
            )

    def refuse_between_steps(self, numbers) -> None:
        """Refuses the forward of a layer with these parameters between two steps. An evaluation may read the last
        step's values from storage."""
        if current_graph_task_id() == -1 and (torch.is_grad_enabled() or not self.is_from_storage):
            for i in numbers:
                self._refuse_put(
                    i, " Or, if backward() runs several times in a step, make the optimizer with accumulation=N."
                )

    def watch(self, numbers) -> None:
        for i in numbers:
            watch.watch(self._params[i], self._watchers[i])

    def release(self, numbers) -> None:
        for i in numbers:
            watch.release(self._params[i])

    def put(self, block: int) -> None:
        """The block's gradients have left."""
        self._is_put[block] = True
        self.watch(i for i in self._blocks[block] if self.is_value(i))

    def end_step(self) -> None:
        """All blocks have new values from here on."""
        count = len(self._blocks)
        self._is_brought, self._is_fetched, self._is_put = [False] * count, [False] * count, [False] * count
        self._said_lost = self.is_looked = False
        self._may_send = not self._conductor.is_alone
        self.stored.unload()
        self._digests.forget(self._streamed)
        self.watch(range(len(self._params)))
        if self.device.type == "cuda":
            self._looks.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._looks):
                self._digests.ask_lost()

    def close(self) -> None:
        """The parameters are plain ones from here on, without stand-ins for gradients."""
        for p in self._params:
            watch.release(p)
            if isinstance(p.grad, Departed):
                p.grad = None
        if self.is_from_storage:
            make_empty([self._params[i] for i in range(len(self._params)) if self.is_value(i)], self.device)
        self.stored.close()
        self.values, self._vector, self._places = [], None, {}

    # --- What the program writes ---

    def _here(self) -> list:
        """Numbers of the parameters that have the values of the last step."""
        return [i for block, tensors in enumerate(self._blocks) if self._is_brought[block] for i in tensors]

    @torch.no_grad()
    def look_for_written(self) -> None:
        """Finds out which parameters differ from the last step's values. Costs nothing for those that were not used
        since.
        """
        with outside_program():
            found = self._digests.differing(self._here())
            written = [i for i in found if self._was_empty[i] or self.is_value(i) or not self._equals_value(i)]
            with undivided():
                self._written = written
                self._digests.note([i for i in found if i not in written and i not in self._streamed])
                self.is_looked = True

    def _equals_value(self, i: int) -> bool:
        """Whether a parameter that is a copy has the value of the last step."""
        self._conductor.await_start()
        p, value = self._params[i], self.stored.value(i)
        if i in self._were_places:  # the vector may have older values
            return p.shape == value.shape and self._digests.has_noted_value(i, value.dtype)
        return p.shape == value.shape and torch.equal(p.detach().cpu(), value.to(p.dtype))

    @torch.no_grad()
    def write_back(self, is_thorough: bool, is_last: bool = False) -> None:
        """Makes what the program has written since the last step the masters' values. ``is_thorough``: looks at all
        parameters, else at those that look_for_written() found and those of which PyTorch has counted a change since.
        ``is_last``: values that do not fit the state are left out; else they raise RuntimeError. All ranks call it."""
        self._raise_lost()
        if not is_last and self._vector is not None and self._vector.data_ptr() != self._address:
            raise RuntimeError(
                "The memory that the engine and the parameters share was replaced, as by the module's "
                "share_memory(): call it before the optimizer is made."
            )
        if is_thorough:
            self.look_for_written()
        with DisableTorchFunctionSubclass():
            written = self._digests.differing(sorted({*self._written, *self._digests.counted(self._here())}))
            if is_last:
                written = [
                    i
                    for i in written
                    if self._params[i].shape == self.values[i].shape and self._params[i].dtype in DTYPES
                ]
            for i in written:
                self._check_format(i)
            new = [self._params[i].detach().to("cpu").contiguous().clone() for i in written]
            with undivided():
                self._written = []
                if written or not self._conductor.is_alone:
                    self._conductor.change_masters(
                        [(i, p.data_ptr(), DTYPES[p.dtype]) for i, p in zip(written, new)], new, is_last
                    )
                self._digests.note(written)

    def _check_format(self, i: int) -> None:
        p = self._params[i]
        if p.shape != self.values[i].shape:
            raise RuntimeError(
                f"{self._names[i]} has the shape {tuple(p.shape)}, and had {tuple(self.values[i].shape)} when "
                "training began: make a new optimizer."
            )
        if p.dtype not in DTYPES:
            raise RuntimeError(
                f"{self._names[i]} became {p.dtype} after training began: convert the model before the optimizer is "
                "made."
            )

    def _raise_lost(self) -> None:
        lost = self._lost + [self._names[i] for i in self._digests.lost()]
        self._lost = []
        if lost and not self._said_lost:
            self._said_lost = True
            raise RuntimeError(
                f"Parameters ({_named(lost)}) were changed where it does not count, and the change is lost: between "
                "backward() and step(), or through a view that was taken before the last step. Change a parameter "
                "itself, after step() and before the next forward, or make the optimizer with keep_gradients=True, "
                "which also takes changes before step()."
            )
