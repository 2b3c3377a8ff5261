"""Computes digests of parameters, by which the optimizer sees that the program has changed one. Used by
parameters.py."""

from __future__ import annotations

import itertools

import torch

from .. import _engine

_WORDS_AT_ONCE = 1 << 22


def _memory_of(p):
    """The tensor, or a copy, whose elements lie side by side."""
    return p if p.is_contiguous() or p.is_contiguous(memory_format=torch.channels_last) else p.contiguous()


def _runs(numbers: list):
    """Neighbours among ascending numbers: pairs of the first one and the end."""
    for _, run in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in run]
        yield run[0], run[-1] + 1


def _on_host(p) -> int:
    dense = _memory_of(p)
    return _engine.digest(dense.data_ptr(), dense.numel() * dense.element_size())


def _by_pytorch(p, out) -> None:
    """Computes the digest by PyTorch, for a build without CUDA kernels."""
    words = (
        _memory_of(p)
        .view(-1)
        .view(torch.uint8)
        .view({2: torch.int16, 4: torch.int32}.get(p.element_size(), torch.uint8))
    )
    out.zero_()
    for first in range(0, words.numel(), _WORDS_AT_ONCE):
        part = words[first : first + _WORDS_AT_ONCE].to(torch.int64)
        places = torch.arange(first, first + part.numel(), device=part.device, dtype=torch.int64)
        out += ((part + 0x9E3779B9) * ((places * 2 + 1) * 0x2545F4914F6CDD1D)).sum()


class Digests:
    """Digests of parameters, which are given by their numbers. On a GPU they are computed in the current stream, and
    only differing() waits."""

    def __init__(self, params: list, device: torch.device):
        self._params = params
        self._is_known = [False] * len(params)
        self._versions = [-1] * len(params)
        self._on_gpu = device.type == "cuda"
        if self._on_gpu:
            self._noted, self._now = (torch.zeros(len(params), dtype=torch.int64, device=device) for _ in range(2))
            self._lost = torch.zeros(len(params), dtype=torch.bool, device=device)
            self._has_lost = torch.zeros((), dtype=torch.bool, device=device)
            self._lost_on_host = torch.zeros(len(params), dtype=torch.bool, device="cpu", pin_memory=True)
            self._lost_is_here = None
            self._told: set = set()
        else:
            self._noted = [0] * len(params)

    def _compute(self, numbers: list, out, tensors=None) -> None:
        """``tensors``: in place of all parameters. On a GPU those that the program has moved to the host come by
        copies.
        """
        tensors = tensors or self._params
        if _engine.has_gpu_kernels():
            kept = [_memory_of(tensors[i].to(out.device)) for i in numbers]
            pieces = [
                (p.data_ptr(), p.numel() * p.element_size(), out.data_ptr() + 8 * i) for i, p in zip(numbers, kept)
            ]
            _engine.digest_on_gpu(pieces, torch.cuda.current_stream(out.device).cuda_stream)
        else:
            for i in numbers:
                _by_pytorch(tensors[i].to(out.device), out[i])

    @torch.no_grad()
    def note(self, numbers: list) -> None:
        """The parameters are as they should be."""
        for i in numbers:
            self._is_known[i] = True
            self._versions[i] = self._params[i]._version
        if self._on_gpu:
            self._compute(numbers, self._noted)
        else:
            for i in numbers:
                self._noted[i] = _on_host(self._params[i])

    def is_known(self, i: int) -> bool:
        return self._is_known[i]

    def forget(self, numbers: list) -> None:
        for i in numbers:
            self._is_known[i] = False

    def counted(self, numbers: list) -> list:
        """Returns the parameters of which PyTorch has counted a change since they were noted, as by
        Embedding(max_norm=1) in a forward."""
        return [i for i in numbers if self._is_known[i] and self._params[i]._version != self._versions[i]]

    @torch.no_grad()
    def differing(self, numbers: list) -> list:
        """Returns the parameters that are not as they were noted."""
        known = [i for i in numbers if self._is_known[i]]
        if not self._on_gpu:
            return [i for i in known if _on_host(self._params[i]) != self._noted[i]]
        if not known:
            return []
        self._compute(known, self._now)
        differs = (self._now != self._noted).tolist()
        return [i for i in known if differs[i]]

    @torch.no_grad()
    def has_noted_value(self, i: int, dtype: torch.dtype) -> bool:
        """Whether the parameter, which was noted as a contiguous tensor of ``dtype`` on a GPU, has that value still: in
        other memory, or in another type that has it exactly."""
        p = self._params[i]
        as_noted = p.to(self._now.device, dtype).contiguous()
        if not torch.equal(as_noted.to(p.device, p.dtype), p):
            return False
        self._compute([i], self._now, {i: as_noted})
        return bool(self._now[i] == self._noted[i])

    @torch.no_grad()
    def before_overwriting(self, numbers: list) -> list:
        """Returns the parameters that are not as they were noted. On a GPU this is known later: lost() returns them."""
        if not self._on_gpu:
            return self.differing(numbers)
        known = [i for i in numbers if self._is_known[i]]
        if known:
            self._compute(known, self._now)
            for first, end in _runs(known):  # a list of places would come by a copy, for which the host waits
                self._lost[first:end] |= self._now[first:end] != self._noted[first:end]
        return []

    def has_lost(self, numbers: list):
        """A tensor on the GPU that says whether before_overwriting() found any; None if not all of these are known."""
        if not all(self._is_known[i] for i in numbers):
            return None
        return torch.any(self._lost, 0, out=self._has_lost)

    def ask_lost(self) -> None:
        """Begins to bring what before_overwriting() found."""
        if self._on_gpu:
            self._lost_on_host.copy_(self._lost, non_blocking=True)
            self._lost_is_here = torch.cuda.Event()
            self._lost_is_here.record(torch.cuda.current_stream(self._lost.device))

    def lost(self) -> list:
        """Returns what the last ask_lost() asked for, each parameter once; empty if it has not arrived."""
        if not self._on_gpu or self._lost_is_here is None or not self._lost_is_here.query():
            return []
        self._lost_is_here = None
        found = {i for i, is_lost in enumerate(self._lost_on_host.tolist()) if is_lost} - self._told
        self._told |= found
        return sorted(found)
