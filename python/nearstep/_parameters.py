"""The trained parameters of a module, and how they get the engine's new values."""

from __future__ import annotations

import torch

from ._empty import fill, is_empty


class Parameters:
    """Each parameter has a value in the engine's vector, which is in host memory. A parameter is a copy of it, or, if it
    was empty and is on the CPU, the value itself. A streamed one is its value, too, unless its layer is in a slot."""

    def __init__(self, params: list, blocks: list, vector, device: torch.device, streamed: set):
        """``blocks``: lists of numbers of parameters; ``streamed``: numbers."""
        self._streamed = streamed
        self.device = device
        self._params = params
        self._blocks = blocks
        self.values = []
        at = 0
        for p in params:
            self.values.append(vector[at : at + p.numel()].view(p.shape))
            at += p.numel()
        self._was_empty = [is_empty(p) for p in params]
        self._is_brought = [True] * len(blocks)
        self._is_fetched = [True] * len(blocks)
        if device.type == "cuda":
            self._copies = torch.cuda.Stream(device)
            self._copied = [torch.cuda.Event() for _ in blocks]
            self._used = torch.cuda.Event()
            self._used.record(torch.cuda.current_stream(device))

    @property
    def were_empty(self) -> list:
        """Numbers of the parameters that were empty."""
        return [i for i, was_empty in enumerate(self._was_empty) if was_empty]

    def is_value(self, i: int) -> bool:
        """Whether the parameter is the engine's value itself. It is a copy when the program has converted it."""
        return i in self._streamed or self._params[i].data_ptr() == self.values[i].data_ptr()

    def _memory(self, i: int):
        """For a parameter that was empty."""
        p, value = self._params[i], self.values[i]
        if i in self._streamed or (self.device.type == "cpu" and p.dtype == value.dtype):
            return value
        return torch.empty_like(p, memory_format=torch.contiguous_format)

    def fill_empty(self) -> list:
        """Gives memory to empty parameters. Returns what give_back() needs."""
        memory = [self._memory(i) for i in self.were_empty]
        return [fill(self._params[i], data) for i, data in zip(self.were_empty, memory)]

    @torch.no_grad()
    def take_start(self) -> None:
        """Gives the parameters the values that training starts from."""
        for i, (p, value) in enumerate(zip(self._params, self.values)):
            if self.is_value(i):
                p.data = value
                continue
            # Equal values stay: a live graph may hold the tensor.
            if self._was_empty[i] or not torch.equal(p.cpu(), value.to(p.dtype)):
                p.copy_(value)

    def needs(self, block: int) -> bool:
        return not self._is_brought[block]

    def may_fetch(self, block: int) -> bool:
        """Whether fetch() would do something, beside other work of the device."""
        return self.device.type == "cuda" and block < len(self._blocks) and not self._is_fetched[block]

    @torch.no_grad()
    def fetch(self, block: int) -> None:
        """Starts to update the block's parameters."""
        if self._is_fetched[block]:
            return
        copied = [i for i in self._blocks[block] if not self.is_value(i)]
        if self.device.type == "cuda":
            with torch.cuda.stream(self._copies):
                for i in copied:
                    self._params[i].copy_(self.values[i], non_blocking=True)
            self._copied[block].record(self._copies)
        else:
            for i in copied:
                self._params[i].copy_(self.values[i])
        self._is_fetched[block] = True

    def bring(self, block: int) -> None:
        """Updates the block's parameters, for work that the device receives from now on."""
        self.fetch(block)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).wait_event(self._copied[block])
        self._is_brought[block] = True

    def end_step(self) -> None:
        """All blocks have new values from here on."""
        self._is_brought = [False] * len(self._blocks)
        self._is_fetched = [False] * len(self._blocks)
        if self.device.type == "cuda":
            self._used.record(torch.cuda.current_stream(self.device))
            self._copies.wait_event(self._used)

    @property
    def are_values(self) -> bool:
        """Whether any parameter is in the engine's memory."""
        return any(map(self.is_value, range(len(self._params))))
