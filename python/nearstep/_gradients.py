"""Sums of gradients over several backward passes."""

import torch

from . import _engine
from ._groups import DTYPES


def add(have, gradient, encodes_on_gpu: bool):
    """The sum of two gradients of one parameter, in fp32 whatever their formats are; may reuse ``have``."""
    if encodes_on_gpu and gradient.is_cuda and have.is_contiguous() and gradient.is_contiguous():
        return _add_on_gpu(have, gradient)
    return (have if have.dtype == torch.float32 else have.float()).add_(gradient)


def _add_on_gpu(have, gradient):
    """One pass over the memory: PyTorch takes two, and its kernel for mixed formats is slower."""
    sums = have if have.dtype == torch.float32 else torch.empty_like(have, dtype=torch.float32)
    pieces = [(tensor.data_ptr(), DTYPES[tensor.dtype]) for tensor in (have, gradient)]
    _engine.add_on_gpu(sums.data_ptr(), *pieces, sums.numel(), torch.cuda.current_stream(gradient.device).cuda_stream)
    return sums
