"""Calls PyTorch's vector functions once on one thread, before several threads call them. Called by _session.py.

PyTorch's CPU build takes exp, erf, tanh and others from Intel's MKL, which initializes itself at the first call. If
several threads make that call at once, one of them may use another, less accurate kernel, and the run's bits differ.
"""

import torch

_FUNCTIONS = "acos asin atan cos erf erfc erfinv exp log log10 log2 sin sqrt tan tanh trunc".split()


def make_first_calls() -> None:
    for dtype in (torch.float32, torch.float64):
        values = torch.full((64,), 0.5, dtype=dtype)  # few enough for a single thread
        for name in _FUNCTIONS:
            getattr(torch, name)(values)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        values = torch.full((1, 64), 0.5, dtype=dtype)
        torch.nn.functional.linear(values, values)
        torch.softmax(torch.nn.functional.gelu(values), -1)
