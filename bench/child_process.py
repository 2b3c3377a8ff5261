"""Ends what a measurement starts with it. Used by bench/gpu_runs.py and the benchmarks that start workers."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent():
    """A `preexec_fn`: the process is killed when the one that starts it ends, however that is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def enter(group):
    """A `preexec_fn` that also enters the cgroup of that folder, if there is one."""
    end_with_parent()
    if group:
        (group / "cgroup.procs").write_text(str(os.getpid()))
