"""A program's own data for a checkpoint: a JSON file with the step in its name."""

import json
import os


def _path(folder: str, step: int) -> str:
    return os.path.join(folder, f"step-{step:08}.extra.json")


def write(folder: str, step: int, extra) -> None:
    """Writes the file. After a crash it is complete or missing."""
    os.makedirs(folder, exist_ok=True)
    path = _path(folder, step)
    with open(path + ".partial", "w") as file:
        json.dump(extra, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".partial", path)


def read(folder: str, step: int):
    """The data written for this step; None if there is none."""
    path = _path(folder, step)
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)
