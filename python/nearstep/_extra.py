"""A program's own data for a checkpoint: a JSON file with the step in its name."""

import json
import os


def _path(folder: str, step: int) -> str:
    return os.path.join(folder, f"step-{step:08}.extra.json")


def write(folder: str, step: int, extra, rank: int):
    """Writes the file on rank 0, unless ``extra`` is None. After a crash it is complete or missing. Raises TypeError on
    every rank if JSON cannot hold ``extra``. Returns an OSError instead of raising it: the checkpoint that follows fails
    for the same reason, then on all ranks, and with a sentence."""
    try:
        text = json.dumps(extra)
    except (TypeError, ValueError) as error:
        raise TypeError(f"extra has a value that JSON cannot hold ({error}): give numbers, texts, lists and dictionaries.") from error
    if extra is None or rank != 0:
        return None
    path = _path(folder, step)
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path + ".partial", "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".partial", path)
    except OSError as error:
        return error
    return None


def read(folder: str, step: int):
    """The data written for this step; None if there is none."""
    path = _path(folder, step)
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return json.load(file)
