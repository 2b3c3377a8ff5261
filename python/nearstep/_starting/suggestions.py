"""Words the sentence about a keyword that a function does not take. Used by the functions that programs call."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, TypeVar

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")
R = TypeVar("R")

_OWN_WAY = "leave it out, since the update runs near the storage, in one way for all tensors"
_INSTEAD = {
    "fused": _OWN_WAY,
    "foreach": _OWN_WAY,
    "capturable": _OWN_WAY,
    "differentiable": "leave it out, since no gradient passes through an update that runs near the storage",
    "amsgrad": "leave it out, since the state has no room for a third moment",
    "maximize": "leave it out, and call (-loss).backward()",
    "nesterov": "leave it out, since momentum is the plain one here",
    "dampening": "leave it out, since momentum is not damped here",
    "lr_decay": "leave it out, and use a scheduler of torch.optim.lr_scheduler",
    "initial_accumulator_value": "leave it out, since sums begin at 0",
    "decoupled_weight_decay": "leave it out, and choose nearstep.AdamW",
    "correct_bias": "leave it out, since the bias is always corrected",
    "max_grad_norm": "write clip_norm",
    "gradient_clip_val": "write clip_norm",
    "gradient_accumulation_steps": "write accumulation",
    "accumulate_grad_batches": "write accumulation",
    "learning_rate": "write lr",
}


def sentence(owner: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    guess = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}."
    return f"nearstep.{owner} has no argument {name}: " + (f"{_INSTEAD[name]}." if name in _INSTEAD else guess)


def suggests(function: Callable[P, R]) -> Callable[P, R]:
    """A keyword argument that the function does not have is a sentence that names the one that was meant."""
    owner = function.__qualname__.removesuffix(".__init__")
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def call(*arguments: P.args, **settings: P.kwargs) -> R:
        for name in settings:
            if name not in known:
                raise TypeError(sentence(owner, name, known))
        return function(*arguments, **settings)

    return call
