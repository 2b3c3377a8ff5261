"""Converts the optimizers' arguments to settings of the engine."""

from __future__ import annotations

import json
import os


def _toml(value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)


def _flat(config: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in config.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat


# From this many parameters on, devices work on larger subgroups, so that threads hand over less often.
_LARGE_ELEMENTS, _LARGE_SUBGROUP_TILES = 1 << 28, 64


def settings_of(path, state, codec, clipping, devices, durability, seed, config, elements) -> list[str]:
    """The optimizer's arguments as "key=value", as for nearstep train's ``--set``. ``elements``: all parameters."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else path
    known = {
        "csd.path": None if paths is None else [os.fspath(one) for one in paths],
        "csd.per_rank": devices if devices is None or isinstance(devices, (list, tuple)) else [devices],
        "csd.state": state,
        "csd.durability": durability,
        "compress.codec": codec,
        "train.clipping": clipping,
        "train.seed": seed,
    }
    flat = {key: value for key, value in known.items() if value is not None}
    flat.update(_flat(config))
    if "csd.path" in flat:
        flat.setdefault("csd.per_rank", [len(flat["csd.path"])])
    if flat.get("compress.codec", "dense") not in ("dense", "auto"):
        flat.setdefault("mode", "su+o+c")
    if elements >= _LARGE_ELEMENTS:
        flat.setdefault("csd.subgroup_tiles", _LARGE_SUBGROUP_TILES)
    return [f"{key}={_toml(value)}" for key, value in flat.items()]
