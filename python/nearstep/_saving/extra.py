"""Keeps a program's own data for a checkpoint: a JSON file with the step in its name. Called by _session.py."""

from __future__ import annotations

import contextlib
import json
import os
import stat


_RUN = "nearstep_run"  # the file begins with it, by which src/checkpoint/checkpoint_files.cpp knows it
_MODE = 0o640  # less what the umask takes, as all of a checkpoint's files


def _path(folder: str, step: int) -> str:
    return os.path.join(folder, f"step-{step:08}.extra.json")


def _remove_foreign(path: str, runs: list):
    """Removes the file if another run of this user's has written it. Returns an error instead of raising it, as
    write().
    """
    try:
        if _is_own(path) and _load(path)[0] not in runs:
            os.remove(path)
    except (OSError, ValueError) as error:
        return error
    return None


def write(folder: str, step: int, runs: list, extra):
    """Writes the file, unless ``extra`` is None, for the first of ``runs``: the run and its parents. No file of another
    run stays. After a crash it is complete or missing. Returns what went wrong instead of raising it, because the other
    ranks go on to write a checkpoint. If the folder cannot be written, that fails for the same reason, then on all
    ranks, and with a sentence."""
    path = _path(folder, step)
    if extra is None:
        return _remove_foreign(path, runs)
    try:
        text = json.dumps({_RUN: runs[0], "extra": extra})
    except (TypeError, ValueError, RecursionError) as error:
        _remove_foreign(path, runs)
        return TypeError(
            f"extra, which the checkpoint of this step lacks, has a value that JSON cannot hold ({error}): give "
            "numbers, texts, lists and dictionaries."
        )
    try:
        os.makedirs(folder, exist_ok=True)
        with _make(path + ".partial") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".partial", path)
        _flush_folder(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.remove(path + ".partial")  # which may take the room that the checkpoint needs
        return OSError(
            error.errno,
            f"extra, which the checkpoint of this step lacks, cannot be written to {path} ({error.strerror}): "
            "free some space there, or name another folder.",
        )
    return None


def _flush_folder(folder: str) -> None:
    """The names in it survive a power cut."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _is_own(path: str) -> bool:
    """Whether this is a regular file of this user's, and no link."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def _make(path: str):
    """Opens a new file. What has the name, as a crash left it, is removed; a link is not followed."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    return open(path, "x", opener=lambda name, flags: os.open(name, flags, _MODE))


def _load(path: str) -> tuple:
    """The run that has written the file, None with a version that did not name it, and the data."""
    try:
        with open(path) as file:
            found = json.load(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The file {path} is not JSON ({error}): remove it, and opt.extra is None.") from error
    return (found[_RUN], found["extra"]) if isinstance(found, dict) and _RUN in found else (None, found)


def read(folder: str, step: int, runs: list | None = None):
    """The data written for this step, by one of ``runs`` if they are given; None if there is none. Runs that share a
    folder have a folder ``run-ID`` each in it."""
    for place in (folder, *(os.path.join(folder, f"run-{run}") for run in runs or ())):
        path = _path(place, step)
        if os.path.isfile(path):
            run, extra = _load(path)
            if runs is None or run is None or run in runs:
                return extra
    return None
