"""Knows which rank this process is, and ends the ranks together. Used by _optimizer.py, _session.py and _serve.py."""

import atexit
import itertools
import os
import re
import shlex
import sys
import time
import traceback
import weakref
import zlib

from . import _engine

# Environment variables of Open MPI, PMIx and Slurm: rank, number of ranks, local rank on the node.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMIX_RANK", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri", "SLURM_JOB_ID", "SLURM_STEP_ID")  # the same on all ranks of a job
_FIRST_PORT, _PORTS = 20000, 10000  # below those that systems give to connections
_optimizers = weakref.WeakValueDictionary()  # in the order in which they were made, which is that of all ranks
_in_step: dict = {}  # conductors by id, kept alive: sys.exit() drops local variables before the process ends
_FIRST_SPEAKS_S = 5
_has_failed = False
_numbers = itertools.count()
_has_made = False  # an optimizer
_serves = False
_process = os.getpid()  # that takes part as a rank: a fork of it does not, unless it makes or begins an optimizer of its own


def _number(name: str, default: int = 1) -> int:
    """A number of ranks that a launcher has set."""
    word = os.environ.get(name) or str(default)
    if not re.fullmatch("[1-9][0-9]{0,8}", word):
        raise ValueError(f"{name} is {word!r}, which is no number of ranks: unset it, and start several ranks with nearstep-run.")
    return int(word)


def _set_environment() -> None:
    for names in _LAUNCHERS:
        if all(name in os.environ for name in names):
            values = [os.environ[name] for name in names]
            break
    else:
        return
    ranks = _number(names[1])
    if ranks > 1:
        for name, value in zip(("RANK", "WORLD_SIZE", "LOCAL_RANK"), values):
            os.environ.setdefault(name, value)
        _set_address(ranks)


def _set_address(ranks: int) -> None:
    """Says where torch.distributed finds rank 0, for programs that use it beside nearstep, such as Accelerate's."""
    first = re.match(r"([^,\[]+)(?:\[(\d+))?", os.environ.get("SLURM_STEP_NODELIST", ""))
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(ranks):
        host = "127.0.0.1"
    elif first:
        host = first[1] + (first[2] or "")
    else:
        return
    os.environ.setdefault("MASTER_ADDR", host)
    job = "".join(os.environ.get(name, "") for name in _JOBS)
    os.environ.setdefault("MASTER_PORT", str(_FIRST_PORT + zlib.crc32(job.encode()) % _PORTS))


def _program() -> list:
    """The words that started this program, without Python: a script, or -m and a module, and the arguments."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None:
        return sys.argv
    return ["-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]


def check_launcher() -> None:
    """Raises RuntimeError if several processes were started without MPI: each would take itself for the only one."""
    told = _number("WORLD_SIZE")
    if told > 1 and not any(all(name in os.environ for name in names) for names in _LAUNCHERS):
        here = _number("LOCAL_WORLD_SIZE", told)
        hosts = f" --nnodes {told // here} --hostfile HOSTS" if told > here else ""
        raise RuntimeError(
            f"This is one of {told} processes of torchrun, accelerate launch or another launcher that MPI does not know. Start the "
            f"ranks with: nearstep-run --nproc-per-node {here}{hosts} {shlex.join(_program())}"
        )


def take_part() -> None:
    """This process is a rank, also if it is a fork of one that is not."""
    global _process
    _process = os.getpid()
    _fill_standard_descriptors()


def _fill_standard_descriptors() -> None:
    """One below 3 that is closed would be given to the next file that is opened, such as one of state, and messages would be
    written into it."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)


def is_fork() -> bool:
    """Whether the rank is the process that this one is a fork of, also before that one began to train: nothing of it may
    be used then, and the others wait for that one."""
    return os.getpid() != _process or _engine.is_forked()


def keep(optimizer) -> None:
    """Closes the optimizer at the end of the process, before MPI ends."""
    global _has_made
    take_part()
    _has_made = True
    _optimizers[next(_numbers)] = optimizer


def note_serving() -> None:
    """The other ranks wait for this one, though it has no optimizer."""
    global _serves
    take_part()
    _serves = True


def note_failure() -> None:
    """This rank ends with an error that is said already."""
    global _has_failed
    _has_failed = True


def close_others(optimizer, paths: list) -> None:
    """Closes the optimizers of this process that have their state in one of the folders, as after a notebook's cell is
    run again."""
    folders = set(map(os.path.realpath, paths))
    for other in list(_optimizers.values()):
        if other is not optimizer and other.has_begun and folders & set(map(os.path.realpath, other._conductor.paths)):
            other.close()
            other._closed_because = f"This optimizer is closed, since another one of this process has opened {paths[0]}: give each a path of its own."


def optimizers() -> list:
    """Returns the optimizers of this process, in the order in which they were made."""
    return list(_optimizers.values())


def enter_step(conductor) -> None:
    _in_step[id(conductor)] = conductor


def leave_step(conductor) -> None:
    _in_step.pop(id(conductor), None)


def is_left_in_step(conductor) -> bool:
    """Whether other ranks wait for the rest of a step, which nobody will take."""
    return id(conductor) in _in_step and not conductor.is_alone


def _is_said(error: str) -> bool:
    """Whether another rank of this host has ended with the same words. The launcher's folder of this run knows, also torchrun's,
    which has a file in a folder of each rank's there."""
    of_torchrun = os.environ.get("TORCHELASTIC_ERROR_FILE", "") if "TORCHELASTIC_RUN_ID" in os.environ else ""
    folder = os.environ.get("PMIX_SERVER_TMPDIR") or os.path.dirname(os.path.dirname(of_torchrun))
    if not folder:
        return False
    try:
        os.close(os.open(os.path.join(folder, f"nearstep-said-{zlib.crc32(error.encode()):08x}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return True
    except OSError:
        pass
    return False


def _note_failure(hook):
    def note(kind, error, trace):
        if is_fork():  # the rank has not failed, and may yet say the same
            hook(kind, error, trace)
            return
        note_failure()
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 and _is_said(f"{kind.__name__}: {error}"):
            time.sleep(_FIRST_SPEAKS_S)  # the end of this rank ends the other one
        else:
            hook(kind, error, trace)

    return note


def _end() -> None:
    if is_fork():  # the optimizers are the parent's
        return
    begun = [optimizer._conductor for optimizer in _optimizers.values() if optimizer.has_begun]
    several = _serves or any(not conductor.is_alone for conductor in (*begun, *_in_step.values()))
    if several and _in_step and not _has_failed:
        print("nearstep: this rank ends in the middle of a step, so all ranks end; what is durable stays.", file=sys.stderr)
    has_failed = several and (_has_failed or bool(_in_step))
    has_lost_step = False
    for optimizer in [] if has_failed else list(_optimizers.values()):
        try:
            optimizer.close()
        except Exception:  # Python would go on and end with code 0
            traceback.print_exc()
            has_lost_step = True
    sys.stdout.flush()
    sys.stderr.flush()
    _engine.end(has_failed or (several and has_lost_step), others_wait=_has_made and int(os.environ.get("WORLD_SIZE", 1)) > 1)
    if has_lost_step:
        os._exit(1)


def _limit_spinning() -> None:
    """PyTorch's threads spin while they wait for each other, by default so long that a step takes ten times as long
    beside other work. OpenMP reads how long when PyTorch is loaded."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


_set_environment()
_limit_spinning()
sys.excepthook = _note_failure(sys.excepthook)
atexit.register(_end)
