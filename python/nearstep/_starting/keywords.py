"""The keyword arguments that all optimizers take: for editors, help() and a sentence about those that none takes. Used
by _optimizers.py."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

import torch

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    from .._streaming.stream import Stream

    P = ParamSpec("P")

from .suggestions import sentence

Params = Union[torch.nn.Module, Iterable[torch.Tensor], Iterable[dict[str, Any]], Iterable[tuple[str, torch.Tensor]]]
Number = Union[float, torch.Tensor]
Path = Union[str, "os.PathLike[str]"]


class Settings(TypedDict, total=False):
    """The keyword arguments of every optimizer. ``Optimizer`` explains them and has their defaults."""

    path: Path | Sequence[Path] | None
    log: Path | Sequence[Path] | None
    state: Literal["fp32", "bf16", "q8", "compact"] | None
    codec: Literal["dense", "q8", "q4", "topk"] | None
    clip_norm: float | None
    clipping: Literal["exact", "delayed"]
    accumulation: int | None
    accumulation_dtype: torch.dtype
    keep_gradients: bool
    keep_random: bool
    devices: int | Sequence[int] | None
    durability: Literal["step", "checkpoint", "none"] | None
    seed: int | None
    fresh: bool
    weights: Path | None
    stream: Stream | None
    gpu_memory_gb: float | None
    config: Mapping[str, Any] | None


EXAMPLE = """A whole program, which is killed and started again at will:

    import nearstep, torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    opt = nearstep.{name}(model, lr=1e-3, path="runs/example", clip_norm=1.0)
    for step in range(opt.resume(), 100):  # from the newest durable step on
        rows = torch.randn(32, 64, generator=torch.Generator().manual_seed(step))
        (model(rows) - rows.sum(1, keepdim=True)).square().mean().backward()
        opt.step()
        opt.zero_grad()
    opt.close()"""


def refuse(cls: type, unknown: Iterable[str]) -> None:
    """Raises TypeError for keyword arguments that the optimizer does not have, and says what to do."""
    for name in unknown:
        raise TypeError(sentence(cls.__name__, name, list(inspect.signature(cls).parameters)))


def refuse_in_groups(cls: type, defaults: Iterable[str], groups: Iterable[Mapping[str, Any]]) -> None:
    """Raises TypeError for a key of a parameter group that looks like one of ours and is not. Others are the program's
    own.
    """
    of_group = ["params", *defaults]
    for name in {name for group in groups for name in group if name not in of_group}:
        near = difflib.get_close_matches(name.lower(), of_group, n=1, cutoff=0.75)
        if (
            near and f"_{near[0]}" not in name and f"{near[0]}_" not in name
        ):  # schedulers have max_momentum and initial_lr
            raise TypeError(
                f"A parameter group has {name}, which nearstep.{cls.__name__} does not know: did you mean {near[0]}?"
            )
        if name in Settings.__annotations__:
            raise TypeError(
                f"A parameter group has {name}, which belongs to the whole optimizer: write "
                f"nearstep.{cls.__name__}(..., {name}=...)."
            )


def show(cls: type, base: type) -> None:
    """Has help() and editors at run time show all arguments of the optimizer, and a whole program."""
    own = inspect.signature(cls.__init__)
    common = [
        one.replace(annotation=Settings.__annotations__[one.name].__forward_arg__)
        for one in inspect.signature(base.__init__).parameters.values()
        if one.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    mine = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    cls.__init__.__signature__ = own.replace(parameters=mine + common)
    about = inspect.cleandoc(base.__doc__ or "")
    cls.__doc__ = "\n\n".join(
        (inspect.cleandoc(cls.__doc__ or ""), EXAMPLE.format(name=cls.__name__), about[about.index("``params``") :])
    )
