"""Ends what a measurement starts with it, and says which GPUs that may use. Used by bench/gpu_runs.py and by the
benchmarks that start workers.
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent():
    """A `preexec_fn`: the process is killed when the one that starts it ends, however that is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def environment_with(gpus):
    """Returns the environment of a process that sees only GPUs of these numbers; None: all that this one sees."""
    if gpus is None:
        return dict(os.environ)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # numbers of GPUs are among these
    names = [str(gpu) if visible is None else visible.split(",")[gpu] for gpu in gpus]
    return os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(names)}


def enter(group):
    """A `preexec_fn` that also enters the cgroup of that folder, if there is one."""
    end_with_parent()
    if group:
        (group / "cgroup.procs").write_text(str(os.getpid()))
