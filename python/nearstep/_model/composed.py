"""Parameters that consist of several tensors, such as torchao's quantised weights: these tensors pass through slots in
the parameter's place, and are not trained. Used by groups.py and _streaming."""

from __future__ import annotations

import torch

from .._torch_private import DTensor, is_traceable_wrapper_subclass


def tensors_of(p) -> list:
    """The tensors that a parameter consists of: itself, unless its class wraps others."""
    if type(p) is torch.nn.Parameter or not is_traceable_wrapper_subclass(p):
        return [p]
    return [tensor for name in p.__tensor_flatten__()[0] for tensor in tensors_of(getattr(p, name))]


def refuse_trained(name: str, p) -> None:
    """Raises ValueError for a trained parameter that consists of several tensors. Of a DTensor the part of
    this rank counts."""
    p = p._local_tensor if DTensor is not None and isinstance(p, DTensor) else p
    if tensors_of(p)[0] is not p:
        raise ValueError(
            f"Parameter {name} is a {type(p).__name__}, which consists of other tensors, and cannot be trained: freeze "
            "it (requires_grad=False); for torchao's float8 training leave enable_fsdp_float8_all_gather out."
        )


def refuse_streamed(name: str, p) -> None:
    """Raises ValueError for a streamed parameter whose tensors cannot pass through slots."""
    kind = type(p).__name__
    if getattr(p, "has_fp16_weights", None) is False:  # bitsandbytes' Int8Params
        raise ValueError(
            f"{name} is a parameter of class {kind}, of which bitsandbytes keeps a second tensor on the GPU, so that "
            "stream= saves no memory: load the model in 4 bits, or train without stream=."
        )
    if not all(tensor.is_contiguous() for tensor in tensors_of(p) if tensor is not p):
        raise ValueError(
            f"{name} is a parameter of class {kind}, whose tensors are not contiguous, which slots would change: "
            "quantise it in another format, or train without stream=."
        )


def rebuild(module: torch.nn.Module) -> None:
    """Makes parameters anew whose tensors have moved to another device, which such a parameter does not notice."""
    for owner in module.modules():
        for name, p in owner.named_parameters(recurse=False):
            tensors = tensors_of(p)
            if tensors[0].device != p.device:
                setattr(owner, name, torch.nn.Parameter(_again(p), requires_grad=False))


def _again(tensor):
    """Composes the tensor again from its inner tensors, on their present device."""
    if not is_traceable_wrapper_subclass(tensor):
        return tensor
    names, context = tensor.__tensor_flatten__()
    inner = {name: _again(getattr(tensor, name)) for name in names}
    return type(tensor).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())
