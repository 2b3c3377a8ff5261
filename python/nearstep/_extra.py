"""A program's own data for a checkpoint: a JSON file with the step in its name."""

from __future__ import annotations

import json
import os


_RUN = "nearstep_run"


def _path(folder: str, step: int) -> str:
    return os.path.join(folder, f"step-{step:08}.extra.json")


def write(folder: str, step: int, run: str, extra):
    """Writes the file, or removes one of an earlier run if ``extra`` is None. After a crash it is complete or missing. Returns what went wrong instead
    of raising it, because the other ranks go on to write a checkpoint. If the folder cannot be written, that fails for the
    same reason, then on all ranks, and with a sentence."""
    path = _path(folder, step)
    if extra is None:
        if os.path.exists(path):
            os.remove(path)
        return None
    try:
        text = json.dumps({_RUN: run, "extra": extra})
    except (TypeError, ValueError, RecursionError) as error:
        return TypeError(f"extra, which the checkpoint of this step lacks, has a value that JSON cannot hold ({error}): give numbers, texts, lists and dictionaries.")
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


def read(folder: str, step: int, run: str | None = None):
    """The data written for this step, by this run if one is named; None if there is none."""
    path = _path(folder, step)
    if not os.path.exists(path):
        return None
    with open(path) as file:
        found = json.load(file)
    if not (isinstance(found, dict) and _RUN in found):
        return found  # of a version that did not name the run
    return found["extra"] if run in (None, found[_RUN]) else None
