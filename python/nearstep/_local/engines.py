"""Makes the engines of parts: with the program's settings, as if each process were alone. Used by optimizer.py and
start.py."""

from __future__ import annotations

import os

from .. import _engine
from .._model import description
from .._model.groups import DTYPES, plain_module
from .._starting.names import whole_path
from .._starting.settings import flattened, settings_of
from . import folders, shadow
from .boxes import Range

try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:  # a PyTorch that has it elsewhere, or without torch.distributed
    FSDPModule = None


def paths_of(given: dict) -> list:
    path = given["path"]
    if path is None:
        path = flattened(given["config"] or {}).get("csd.path", "runs/state")
    return [whole_path("path", one) for one in (path if isinstance(path, (list, tuple)) else [path])]


def given_to_part(given: dict, path: list, name: str, rank: int, is_fresh: bool) -> dict:
    """The program's settings for the engine of a part whose state lies in these folders. ``name``: of a folder for its
    logs and its checkpoints, if the program says where they go."""
    given = dict(given)
    given.update(path=path, fresh=is_fresh, keep_gradients=True, clip_norm=None, clipping="exact", accumulation=None)
    if isinstance(given["devices"], (list, tuple)):
        given["devices"] = given["devices"][rank]
    config = flattened(given["config"] or {})
    config.pop("csd.path", None)
    logs = config.pop("csd.log", given["log"])
    if logs is not None and name:
        logs = [os.path.join(os.fspath(one), name) for one in (logs if isinstance(logs, (list, tuple)) else [logs])]
    given["log"] = logs
    if name and "checkpoint.path" in config:
        config["checkpoint.path"] = os.path.join(os.fspath(config["checkpoint.path"]), name)
    given["config"] = config
    return given


def whole_of(layout) -> folders.Whole:
    ranges = []
    for name, p in zip(layout.names, layout.params):
        shape = tuple(p.shape)
        ranges.append(Range(name, shape, (0,) * len(shape), shape, tuple(range(len(shape))), 0, p.numel()))
    return folders.Whole(DTYPES[layout.dtype], ranges, layout.group_of)


def _kind_of(module) -> str:
    """The name of the module's class without that of fully_shard()."""
    kinds = type(plain_module(module)).__mro__
    return next(kind.__name__ for kind in kinds if FSDPModule is None or not issubclass(kind, FSDPModule))


def engine_of(part: folders.Part, optimizer, paths: list, world, layout):
    """Makes an engine that reads or writes the state of a part, as if this process were alone. ``layout``: the
    model's."""
    given = given_to_part(optimizer._given, part.within(paths), part.name, world.rank, False)
    module = optimizer._module
    is_whole = isinstance(part, folders.Whole)
    kind = shadow.NAME if not is_whole else "tensors" if module is None else _kind_of(module)
    shapes = [(name, tuple(shape)) for name, shape, _ in part.tensors]
    return _engine.Conductor(
        settings=settings_of(given, elements=0),
        tensors=part.tensors,
        tensors_of_blocks=[len(block.tensors) for block in layout.blocks] if is_whole else [len(part.tensors)],
        dtype=part.dtype,
        model=description.of_tensors(kind, shapes, _engine.moments_of(optimizer._name)),
        granted_devices="",
        gpu=None,
        gradient_stream=0,
        fills_gpu=False,
        processes_beside=world.beside,
    )
