"""Makes models whose parameters take no memory until the optimizer begins. Called by programs as nearstep.empty()."""

from __future__ import annotations

import contextlib
import enum

import torch

from .._torch_private import DisableTorchFunctionSubclass
from .departed import ABOUT, CONVERSIONS, give_back_class, give_class
from .._starting.suggestions import suggests


class _Values(enum.Enum):
    """Where the values of an empty parameter are."""

    nowhere = 0
    in_a_state = 1  # of an optimizer that is closed, or has them in storage


@suggests
@contextlib.contextmanager
def empty(device: str | torch.device = "cpu"):
    """Modules that are made within take no memory for their parameters. The optimizer makes the parameters on
    ``device`` when it begins: from its state if it resumes, else from its ``weights``, else as the modules initialise
    themselves. Buffers are computed as usual, and are on ``device`` at once. Parameters that are added outside, such as
    LoRA's, have their own values. Choose device and format within: ``to()`` gives memory to what is empty.

        with nearstep.empty("cuda"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
        opt = nearstep.AdamW(nearstep.groups(model), path="/nvme0/run", weights=folder)
    """
    device = torch.empty(0, device=device).device  # with its index
    module = torch.nn.Module
    register_parameter, register_buffer = module.register_parameter, module.register_buffer
    made = {}  # by id; alive, so that no id comes twice

    def refuse_meta(tensor):
        if tensor.is_meta and id(tensor) not in made:
            raise RuntimeError(
                "nearstep.empty() is for models that are built, not loaded: call from_config() in place of "
                "from_pretrained(), and name the folder by weights=FOLDER."
            )

    def without_memory(self, name, param):
        register_parameter(self, name, param)
        if param is not None:
            refuse_meta(param)
            if not param.is_meta:  # there, initialisation does nothing
                _replace(param, param.detach().to("meta"))
            made[id(param)] = param

    def on_device(self, name, tensor, *arguments, **settings):
        register_buffer(self, name, tensor, *arguments, **settings)
        if tensor is not None:
            refuse_meta(tensor)
            self._buffers[name] = tensor.to(device)

    module.register_parameter, module.register_buffer = without_memory, on_device
    try:
        yield
    finally:
        module.register_parameter, module.register_buffer = register_parameter, register_buffer
    for p in made.values():
        if p.is_meta:
            _replace(p, _placeholder(p, device))
            p._nearstep_empty = _Values.nowhere
    guard(made.values())


def _placeholder(p, device):
    return torch.full((), float("nan"), dtype=p.dtype, device=device).expand(p.shape)


def _replace(p, data) -> None:
    """Makes the parameter hold ``data``, wherever that is; it stays the same object."""
    other = torch.nn.Parameter(data, requires_grad=p.requires_grad)
    other.__dict__.update(p.__dict__)
    torch.utils.swap_tensors(p, other)


def is_empty(p) -> bool:
    """Whether the parameter has a shape but no values. One that the program has given values since is not empty."""
    with DisableTorchFunctionSubclass():
        return getattr(p, "_nearstep_empty", None) is not None and (
            p.numel() == 0 or bool(p.detach()[(0,) * p.dim()].isnan())
        )


# Functions that make another tensor of the same kind, or ask for the memory.
_WITHOUT_VALUES = (
    {f"{kind}_like" for kind in ("zeros", "ones", "full", "empty", "rand", "randn")}
    | {f"new_{kind}" for kind in ("zeros", "ones", "full", "empty")}
    | {"view_as", "expand_as", "untyped_storage", "data_ptr"}
)


class _Guarded:
    """A parameter without values: whoever uses it would get NaN. It may be given values, and be moved."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if (
            func not in ABOUT
            and func != torch.Tensor.data.__set__
            and name not in CONVERSIONS
            and name not in _WITHOUT_VALUES
        ):
            _refuse()
        with DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __deepcopy__(self, _):
        _refuse()

    def __reduce_ex__(self, _):
        _refuse()


def _refuse():
    raise RuntimeError(
        "The parameters of a module from nearstep.empty() have no values until training begins: make the optimizer "
        "and call opt.resume() before you use, copy or save them."
    )


def guard(params) -> None:
    """Makes the empty ones among ``params`` refuse to be used from here on."""
    for p in params:
        if is_empty(p):
            give_class(p, _Guarded)


def open_guarded(params) -> None:
    for p in params:
        give_back_class(p, _Guarded)


def fill(p, data) -> tuple:
    """Gives memory to an empty parameter. Returns what give_back() needs."""
    was = p.data, p._nearstep_empty
    p.data = data
    p._nearstep_empty = None
    return p, *was


def make_empty(params: list, device: torch.device) -> None:
    """Parameters take no memory any more, and have no values: these stay in the state."""
    for p in params:
        p.data = _placeholder(p, device)
        p._nearstep_empty = _Values.in_a_state
    guard(params)


def refuse_to_draw(params: list) -> None:
    """Raises ValueError if a closed optimizer has the values."""
    if any(getattr(p, "_nearstep_empty", None) is _Values.in_a_state for p in params):
        raise ValueError(
            "The parameters of this module are in the path of an optimizer with Stream(host_memory_gb=...), which is "
            "closed: go on there with opt.resume(), "
            "or pass weights=FOLDER, a folder of that one's export()."
        )


def give_back(filled: list) -> None:
    """Makes parameters empty again."""
    for p, *was in filled:
        p.data, p._nearstep_empty = was
