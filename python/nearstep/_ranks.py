"""Knows which rank this process is, and ends the ranks together. Used by _optimizer.py, _session.py and _serve.py."""

import atexit
import itertools
import os
import re
import shlex
import signal
import sys
import threading
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
_is_interrupted = False  # by Ctrl-C
_last_words = ""  # the error by which the program has ended
_numbers = itertools.count()
_has_made = False  # an optimizer
_serves = False
_process = (
    os.getpid()
)  # that takes part as a rank: a fork of it does not, unless it makes or begins an optimizer of its own


def _number(name: str, default: int = 1) -> int:
    """A number of ranks that a launcher has set."""
    word = os.environ.get(name) or str(default)
    if not re.fullmatch("[1-9][0-9]{0,8}", word):
        raise ValueError(
            f"{name} is {word!r}, which is no number of ranks: unset it, and start several ranks with nearstep-run."
        )
    return int(word)


def _names_of_launcher() -> tuple:
    """The variables by which MPI's launcher has told this process its rank; empty if none has."""
    return next((names for names in _LAUNCHERS if all(name in os.environ for name in names)), ())


def _set_environment() -> None:
    names = _names_of_launcher()
    if not names:
        return
    ranks = _number(names[1])
    if ranks > 1:
        for name, variable in zip(("RANK", "WORLD_SIZE", "LOCAL_RANK"), names):
            os.environ.setdefault(name, os.environ[variable])
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


def are_of_mpi() -> bool:
    """Whether this process is one of several ranks that find each other by MPI. What torchrun starts within a job of
    Slurm's is none.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return False
    return any(all(name in os.environ for name in names) and _number(names[1]) > 1 for names in _LAUNCHERS)


def is_first() -> bool:
    """Whether MPI's launcher has started this process as its first rank, or none has."""
    return all(os.environ[name] == "0" for name in _names_of_launcher()[:1])


def check_launcher(find_each_other: bool) -> None:
    """Raises RuntimeError if several processes were started that do not find each other: each would take itself for the
    only one.
    """
    if not find_each_other:
        _check_pmi()
    told = _number("WORLD_SIZE")
    if told > 1 and not find_each_other:
        here = _number("LOCAL_WORLD_SIZE", told)
        hosts = f" --nnodes {told // here} --hostfile HOSTS" if told > here else ""
        raise RuntimeError(
            f"This is one of {told} processes that cannot find each other, since RANK, MASTER_ADDR or MASTER_PORT is "
            "not set: call torch.distributed.init_process_group(), or start the "
            f"ranks with torchrun or with: nearstep-run --nproc-per-node {here}{hosts} {shlex.join(_program())}"
        )


def check_group() -> None:
    """Raises RuntimeError if torch.distributed joined more processes after an optimizer was made that does not train
    with them: each process would take itself for one of fewer ranks, or for the only one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    joined, names = distributed.get_world_size(), _names_of_launcher()
    known = _number(names[1]) if names else 1
    if joined > known:
        raise RuntimeError(
            f"torch.distributed joined {joined} processes after the optimizer was made for {known}, and they would "
            "not train one "
            "model: call init_process_group() before you make the optimizer."
        )


def _check_pmi() -> None:
    """Raises RuntimeError if the launcher of another MPI, such as MPICH's mpiexec, started several processes. Whether
    Open MPI can join the tasks of a step of Slurm's is seen when it starts."""
    started = _number("PMI_SIZE")
    knows_others = (
        "OMPI_COMM_WORLD_SIZE" in os.environ or "PMIX_NAMESPACE" in os.environ or _number("SLURM_STEP_NUM_TASKS") > 1
    )
    if started > 1 and not knows_others:
        raise RuntimeError(
            f"The launcher of another MPI has started {started} processes (PMI_SIZE), which cannot find each other "
            "by Open MPI. Start "
            f"the ranks with: nearstep-run --nproc-per-node {_number('MPI_LOCALNRANKS', started)} "
            f"{shlex.join(_program())}"
        )


def take_part() -> None:
    """Makes this process a rank, also if it is a fork of a process that is none."""
    global _process
    _process = os.getpid()
    _fill_standard_descriptors()
    _hear_notice()


def _hear_notice() -> None:
    """A notice to stop reaches ranks as SIGUSR1, since mpirun and Slurm forward that. It would end a program that
    handles SIGTERM alone, so that handler gets it."""
    handles_term = callable(signal.getsignal(signal.SIGTERM)) and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
    if handles_term and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGUSR1, lambda *_: os.kill(os.getpid(), signal.SIGTERM))


def _fill_standard_descriptors() -> None:
    """Opens /dev/null as each of the descriptors 0 to 2 that is closed. Otherwise the next opened file, such as one of
    state, would get that number, and messages would be written into it."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(number, True)
    os.close(number)


def is_fork() -> bool:
    """Whether the rank is the process that this one is a fork of, also before that one began to train: nothing of it
    may be used then, and the others wait for that one."""
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
    """Notes that this rank ends with an error that was printed already."""
    global _has_failed
    _has_failed = True


def close_others(optimizer, paths: list) -> None:
    """Closes the optimizers of this process that have their state in one of the folders, as after a notebook's cell is
    run again."""
    folders = set(map(os.path.realpath, paths))
    for other in list(_optimizers.values()):
        if other is not optimizer and other.has_begun and folders & set(map(os.path.realpath, other._conductor.paths)):
            other.close()
            other._closed_because = (
                f"This optimizer is closed, since another one of this process has opened {paths[0]}: give each a "
                "path of its own."
            )


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


def _in_words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _is_said(error: str) -> bool:
    """Whether another rank of this host has ended with the same words. The launcher's folder of this run knows, also
    torchrun's, which has a file in a folder of each rank's there."""
    of_torchrun = os.environ.get("TORCHELASTIC_ERROR_FILE", "") if "TORCHELASTIC_RUN_ID" in os.environ else ""
    folder = os.environ.get("PMIX_SERVER_TMPDIR") or os.path.dirname(os.path.dirname(of_torchrun))
    if not folder:
        return False
    try:
        os.close(
            os.open(
                os.path.join(folder, f"nearstep-said-{zlib.crc32(error.encode()):08x}"),
                os.O_CREAT | os.O_EXCL | os.O_WRONLY,
            )
        )
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
        global _is_interrupted, _last_words
        _is_interrupted = issubclass(kind, KeyboardInterrupt)
        _last_words = _in_words(error)
        note_failure()
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 and _is_said(_last_words):
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
        print(
            "nearstep: this rank ends in the middle of a step, so all ranks end; what is durable stays.",
            file=sys.stderr,
        )
    has_failed = several and (_has_failed or bool(_in_step))
    has_lost_step = False
    for optimizer in [] if has_failed else list(_optimizers.values()):
        try:
            optimizer.close()
        except Exception as error:  # Python would go on and end with code 0
            # An interrupt may have come in the middle of a step, which then has no end, and it has a code of its own.
            if not _is_interrupted:
                if _in_words(error) != _last_words:
                    traceback.print_exc()
                has_lost_step = True
    sys.stdout.flush()
    sys.stderr.flush()
    _engine.end(has_failed or (several and has_lost_step), others_wait=_has_made and are_of_mpi())
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
