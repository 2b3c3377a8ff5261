"""A program's own data for a checkpoint: a JSON file with the step in its name."""

import json
import os


def _path(folder: str, step: int) -> str:
    return os.path.join(folder, f"step-{step:08}.extra.json")


def write(folder: str, step: int, extra):
    """Writes the file, unless ``extra`` is None. After a crash it is complete or missing. Returns what went wrong instead
    of raising it, because the other ranks go on to write a checkpoint. If the folder cannot be written, that fails for the
    same reason, then on all ranks, and with a sentence."""
    if extra is None:
        return None
    try:
        text = json.dumps(extra)
    except (TypeError, ValueError, RecursionError) as error:
        return TypeError(f"extra, which the checkpoint of this step lacks, has a value that JSON cannot hold ({error}): give numbers, texts, lists and dictionaries.")
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
