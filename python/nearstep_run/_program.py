"""The program nearstep of a wheel: finds PyTorch and, among several ranks, Open MPI, and becomes it."""

import importlib.metadata
import importlib.util
import os
import pathlib
import sys

from . import _open_mpi

_FOLDER = pathlib.Path(__file__).parent


def _fail(words: str) -> None:
    print(f"nearstep: {words}", file=sys.stderr)
    sys.exit(2)


def _put_before(name: str, word: str) -> None:
    os.environ[name] = os.pathsep.join(filter(None, (word, os.environ.get(name))))


def main() -> None:
    program = _FOLDER / "nearstep"
    if not program.is_file():
        _fail(
            "this package was built without the program: install a wheel of launch/wheel, or build "
            "build/release/nearstep in a checkout."
        )
    built = (_FOLDER / "torch_version").read_text().strip()
    there = importlib.metadata.version("torch")
    if there.split(".")[:2] != built.split("."):
        _fail(
            f"the program was built for PyTorch {built}, and this environment has {there}: type pip install "
            f"'torch=={built}.*'. "
            "The Python package nearstep works with both."
        )
    torch = importlib.util.find_spec("torch").submodule_search_locations[0]
    _put_before("LD_LIBRARY_PATH", os.path.join(torch, "lib"))
    _put_before("PATH", os.path.dirname(sys.argv[0]))  # nearstep-report
    if _open_mpi.may_have_ranks() and (library := _open_mpi.find_library()):
        _put_before("LD_PRELOAD", library)
    os.execv(program, ["nearstep", *sys.argv[1:]])
