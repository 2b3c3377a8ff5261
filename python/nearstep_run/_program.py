"""The program nearstep of a wheel, or of the checkout from which the package was installed: finds PyTorch and, among
several ranks, Open MPI, and becomes it."""

import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys

from . import _open_mpi

_FOLDER = pathlib.Path(__file__).parent
# Commands that compute with PyTorch's tensors, whose layout belongs to one version.
_COMPUTING = {"train", "compare", "bench"}


def _fail(words: str) -> None:
    print(f"nearstep: {words}", file=sys.stderr)
    sys.exit(2)


def _put_before(name: str, word: str) -> None:
    os.environ[name] = os.pathsep.join(filter(None, (word, os.environ.get(name))))


def _use_checkout() -> None:
    """Becomes the program of the checkout, which knows its PyTorch."""
    checkout = pathlib.Path((_FOLDER / "checkout").read_text().strip())
    program = checkout / "build/release/nearstep"
    if not program.is_file():
        _fail(
            f"this package has no program: type launch/build release nearstep in {checkout}, or install a wheel of "
            "launch/wheel."
        )
    os.execv(program, ["nearstep", *sys.argv[1:]])


def _loads(program: pathlib.Path) -> bool:
    """Whether PyTorch has the classes that the program names. Functions are looked up when they are called."""
    return subprocess.run([program, "--version"], capture_output=True, check=False).returncode == 0


def main() -> None:
    program = _FOLDER / "nearstep"
    if not program.is_file():
        _use_checkout()
    built = (_FOLDER / "torch_version").read_text().strip()
    there = importlib.metadata.version("torch")
    torch = importlib.util.find_spec("torch").submodule_search_locations[0]
    _put_before("LD_LIBRARY_PATH", os.path.join(torch, "lib"))
    _put_before("PATH", os.path.dirname(sys.argv[0]))  # nearstep-report
    if _open_mpi.may_have_ranks() and (library := _open_mpi.find_library()):
        _put_before("LD_PRELOAD", library)
    if sys.argv[1:2] == ["doctor"]:  # other hosts need this wrapper, too
        os.environ.setdefault("NEARSTEP_PROGRAM", os.path.abspath(sys.argv[0]))
    is_computing = bool(_COMPUTING.intersection(sys.argv[1:2]))
    if there.split(".")[:2] != built.split(".") and (is_computing or not _loads(program)):
        _fail(
            f"the program was built for PyTorch {built}, and this environment has {there}: type pip install "
            f"'torch=={built}.*'. The Python package nearstep works with both."
        )
    os.execv(program, ["nearstep", *sys.argv[1:]])
