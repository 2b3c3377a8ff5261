"""The object that stands in ``p.grad`` while the optimizer has the gradient: it takes no memory, and any use raises.
Used by _gradients and watch.py."""

from __future__ import annotations

import functools
import weakref

import torch

from .._torch_private import (
    DisableTorchFunctionSubclass,
    has_compatible_shallow_copy_type,
    is_compiling,
    make_wrapper_subclass,
)

_TENSOR = torch.Tensor
_PROPERTIES = (
    "shape",
    "dtype",
    "device",
    "layout",
    "requires_grad",
    "is_leaf",
    "grad_fn",
    "grad",
    "ndim",
    "is_cuda",
    "is_cpu",
    "is_meta",
    "is_sparse",
    "is_quantized",
    "is_nested",
    "is_mkldnn",
    "names",
    "_version",
    "_base",
    "output_nr",
    "retains_grad",
    "is_sparse_csr",
    "_backward_hooks",
    "_post_accumulate_grad_hooks",
    "is_xla",
    "is_mps",
    "is_xpu",
    "is_ipu",
    "is_mtia",
    "is_maia",
    "is_vulkan",
    "itemsize",
    "nbytes",
    "grad_dtype",
)
_METHODS = (
    "size",
    "dim",
    "ndimension",
    "numel",
    "nelement",
    "stride",
    "element_size",
    "is_floating_point",
    "is_complex",
    "is_contiguous",
    "storage_offset",
    "get_device",
    "register_hook",
    "register_post_accumulate_grad_hook",
    "requires_grad_",
    "retain_grad",
    "type",
    "is_signed",
    "_is_view",
    "is_inference",
    "is_conj",
    "is_neg",
    "is_same_size",
    "has_names",
    "dim_order",
    "__len__",
    "detach_",
    "__repr__",
    "__hash__",
    "__format__",
    "__dir__",
)


def _functions():
    for name in _PROPERTIES:
        descriptor = getattr(_TENSOR, name, None)
        for kind in ("__get__", "__set__", "__delete__"):
            if hasattr(descriptor, kind):
                yield getattr(descriptor, kind)
    for name in _METHODS:
        if hasattr(_TENSOR, name):
            yield getattr(_TENSOR, name)
    yield from (
        has_compatible_shallow_copy_type,
        torch.is_floating_point,
        torch.is_complex,
        torch.numel,
        torch.is_tensor,
        torch.is_same_size,
    )


# Methods that return the tensor itself if it has the format and the device asked for, as in module.to().
CONVERSIONS = ("to", "cpu", "cuda", "float", "bfloat16", "half", "double", "type")

# Functions that ask a tensor about itself and not about its values.
ABOUT = frozenset(_functions())


@functools.cache
def _class_of(kind, plain):
    return type(plain.__name__, (kind, plain), {"__module__": plain.__module__, "_plain": plain})


def give_class(p, kind) -> None:
    """PyTorch asks ``kind``, a class that is no tensor's, before it uses the parameter."""
    if not isinstance(p, kind):
        p.__class__ = _class_of(kind, type(p))


def give_back_class(p, kind) -> None:
    if isinstance(p, kind):
        p.__class__ = type(p)._plain


class Departed(torch.Tensor):
    """``p.grad.zero_()``, as ``module.zero_grad(set_to_none=False)`` calls it, drops the gradient and keeps this one,
    which is zero from then on.
    """

    @staticmethod
    def __new__(cls, p, intake, i: int):
        one = make_wrapper_subclass(cls, p.shape, dtype=p.dtype, device=p.device)
        one._intake = weakref.ref(intake)
        one._number = i
        return one

    def _refuse(self):
        intake = self._intake()
        raise RuntimeError("This gradient has left." if intake is None else intake.sentence_about(self._number))

    def clip(self, params: list, max_norm: float, norm_type: float) -> float:
        """The optimizer clips in the program's place: see Intake.clip()."""
        intake = self._intake()
        return 0.0 if intake is None else intake.clip(params, max_norm, norm_type)

    def _zero(self) -> None:
        intake = self._intake()
        if intake is not None:
            intake.zero(self._number)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in ABOUT or (func == _TENSOR.untyped_storage and is_compiling()):  # torch.compile describes it
            with DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        return cls._act(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls._act(func, args, kwargs)

    @classmethod
    def _act(cls, func, args, kwargs):
        found = list(instances_in(Departed, args)) + list(instances_in(Departed, tuple((kwargs or {}).values())))
        name = getattr(func, "_overloadpacket", func).__name__
        if name in ("zero_", "_foreach_zero_") and found:
            for one in found:
                one._zero()
            return args[0]
        if func == _TENSOR.data.__set__ and args[0] is args[1]:  # by module.to()
            return None
        if (
            name in CONVERSIONS
            and args
            and any(one is args[0] for one in found)
            and _changes_nothing(func, args, kwargs)
        ):
            return args[0]
        next(iter(found))._refuse()

    def __repr__(self):
        return f"<a gradient of shape {tuple(self.shape)} that is with the optimizer>"

    __str__ = __repr__

    def __format__(self, _):
        return repr(self)

    def __deepcopy__(self, _):
        self._refuse()

    def __reduce_ex__(self, _):
        self._refuse()


def _changes_nothing(func, args, kwargs) -> bool:
    """Whether a conversion returns the tensor itself: tried on one of the same kind that has no elements."""
    with DisableTorchFunctionSubclass():
        one = torch.empty([0] * args[0].dim(), dtype=args[0].dtype, device=args[0].device)
        return func(one, *args[1:], **(kwargs or {})) is one


def instances_in(kind, values):
    """The tensors of a class among arguments."""
    for one in values:
        if isinstance(one, kind):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from instances_in(kind, one)
        elif isinstance(one, dict):
            yield from instances_in(kind, one.values())
