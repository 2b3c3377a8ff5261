"""Converts names of files and folders to what the engine takes. Used where a program names one."""

from __future__ import annotations

import os


def expect_text(text: str) -> str:
    """The text. Raises ValueError for bytes that are not UTF-8, which Python has as halves of surrogate pairs."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{text!r} is not UTF-8: choose another name.") from None
    return text


def file_name(argument: str, value) -> str:
    """The name that an argument gives. Raises TypeError or ValueError for what is none."""
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(f"{argument} is {value!r}: give the name of a file or folder.")
    name = expect_text(os.fsdecode(value))
    if not name or "\0" in name:
        raise ValueError(f"{argument} is {name!r}: give a name that is not empty and has no null character.")
    return name


def whole_path(argument: str, value) -> str:
    name = file_name(argument, value)
    try:
        return expect_text(os.path.abspath(name))
    except FileNotFoundError as error:
        raise FileNotFoundError(
            error.errno,
            f"{argument} is {name!r}, and this process's current folder is gone: give a whole path, or change to a "
            "folder that is there.",
        ) from None
