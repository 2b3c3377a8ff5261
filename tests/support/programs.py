"""The programs that a test needs beside the one it tests. NEARSTEP_TEST_PROGRAMS has their paths, with ":" between
them, from PROGRAMS of nearstep_register_test. Standard library only."""

import os
import pathlib


def find(name):
    """The path of a program, or of a library without "lib"; None if this build has none."""
    paths = map(pathlib.Path, filter(None, os.environ.get("NEARSTEP_TEST_PROGRAMS", "").split(":")))
    return next((path for path in paths if path.stem.removeprefix("lib") == name), None)
