"""Writes what the user names as a result, as src/base/output_file.hpp does: a regular file is replaced when it is
whole, the target of a symbolic link too; a device, a pipe and a descriptor such as /dev/stdout are written to."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import re
import shutil
import stat
import sys
import tempfile

MOST_LINKS = 40  # as Linux


class Mistake(Exception):
    """Something the user can fix, as one sentence."""


def _follow(path: pathlib.Path):
    """(the regular file that the path leads to, None) or (None, the device, the pipe or the number of the
    descriptor).
    """
    at = pathlib.Path(path)
    for _ in range(MOST_LINKS):
        folder = pathlib.Path(os.path.realpath(at.parent, strict=True))
        if re.fullmatch(rf"/proc/{os.getpid()}/(task/\d+/)?fd", str(folder)) and at.name.isdigit():
            return None, int(at.name)
        at = folder / at.name
        try:
            mode = os.lstat(at).st_mode
        except FileNotFoundError:
            return at, None
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISLNK(mode):
            return (at, None) if stat.S_ISREG(mode) else (None, at)
        at = folder / os.readlink(at)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


def _beside(regular: pathlib.Path):
    """A new file in the folder of a result, or None if only the result itself can be written."""
    try:
        return tempfile.NamedTemporaryFile("w+b", dir=regular.parent, prefix=f".{regular.name}.", delete=False)
    except OSError:
        if not os.access(regular, os.W_OK):
            raise
        return None


def _copy_through(file, target) -> None:
    file.seek(0)
    if isinstance(target, int):
        sys.stdout.flush()
        opened = os.fdopen(os.dup(target), "wb")
    else:
        opened = open(target, "wb", buffering=0, opener=lambda name, _: os.open(name, os.O_WRONLY | os.O_NOCTTY))
    with opened as out:
        shutil.copyfileobj(file, out)


def check_writable(path) -> None:
    """OSError unless open_output() can write there."""
    regular, other = _follow(path)
    if regular is not None:
        file = _beside(regular)
        if file:
            file.close()
            os.unlink(file.name)
    elif isinstance(other, int):
        os.fstat(other)
    elif not os.access(other, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def say(words: str) -> None:
    """Prints a line, whatever the locale. OSError if it cannot be written."""
    if sys.stdout is None:  # closed
        return
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(words.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except OSError as error:
        sys.stdout = open(os.devnull, "w")  # which Python writes what is left to at the end
        raise OSError(error.errno, error.strerror, "the standard output") from None


# Names of a run's state and checkpoints, as src/store/names.cpp and src/checkpoint/checkpoint_files.cpp make them.
_OF_RUN = re.compile(
    r"rank-\d+(\.device-\d+)?(\.set-\d+)?\.(state|manifest|program-\d)"
    r"|step-\d+(\.attempt-\d+\.rank-\d+)?\.h5|step-\d+\.extra\.json"
)


def would_replace(out: pathlib.Path, files) -> bool:
    """Whether the result ``out`` is one of the files that a program reads, or has the name of a run's."""
    return (
        bool(_OF_RUN.fullmatch(os.path.basename(os.path.realpath(out))))
        or out.is_file()
        and any(file.is_file() and file.samefile(out) for file in files)
    )


# Errors that another path, other permissions or more room can help, as in src/base/error.cpp.
_MISTAKES = frozenset(
    getattr(errno, name)
    for name in (
        "EACCES EPERM EROFS ENOENT ENOTDIR EISDIR EEXIST ELOOP ENAMETOOLONG ENOSPC EDQUOT EFBIG EINVAL EXDEV "
        "EOPNOTSUPP ENOSYS ETXTBSY ENOTEMPTY"
    ).split()
)


def describe(error: OSError) -> tuple[str, int]:
    """Returns the sentence about a file that the system refuses, and the exit code."""
    place = error.filename or "A file"
    if error.errno in _MISTAKES:
        return (
            f"{place} cannot be used ({error.strerror}): check its name and permissions, and that its drive has room.",
            2,
        )
    return (
        f"{place} cannot be used ({error.strerror}): check the drive or the server that it is on, then start again.",
        1,
    )


def code_of(program: str, work) -> int:
    """Does the work of a command, and returns its exit code. Prints the sentence of an error that the user can fix."""
    try:
        work()
    except Mistake as mistake:
        sentence, code = str(mistake), 2
    except OSError as error:
        sentence, code = describe(error)
    else:
        return 0
    print(f"{program}: {sentence}", file=sys.stderr)
    return code


def _mode_of(regular: pathlib.Path) -> int:
    if regular.exists():
        return stat.S_IMODE(regular.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextlib.contextmanager
def open_output(path):
    """A binary file to write and to seek in. Its content is the result's when the block ends, and is dropped if it
    raises.
    """
    regular, other = _follow(path)
    beside = _beside(regular) if regular is not None else None
    file = beside or tempfile.TemporaryFile()
    try:
        yield file
        file.flush()
        if beside is None:
            if regular is not None:
                os.truncate(regular, 0)
            _copy_through(file, regular if regular is not None else other)
            return
        os.fsync(file.fileno())
        os.fchmod(file.fileno(), _mode_of(regular))
        os.replace(file.name, regular)
        beside = None
    except OSError as error:
        if error.filename is None:  # of a write
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        file.close()
        if beside is not None:
            pathlib.Path(beside.name).unlink(missing_ok=True)
