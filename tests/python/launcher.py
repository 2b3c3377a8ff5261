"""Starts the test workers on several ranks. Standard library only."""

import atexit
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "support"))
import facts
import forked
import open_mpi
import programs
import verdict

# For tests that train in their own process.
os.environ.update(open_mpi.environment())

# The device that the tests train on; where there is no GPU, its tests end before they import anything.
DEVICE = os.environ.get("NEARSTEP_TEST_DEVICE", "cpu")
if DEVICE != "cpu" and not pathlib.Path("/dev/nvidiactl").exists():
    verdict.end_skipped("there is no GPU")


def gpus():
    """The number of those that a program sees here."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return len([one for one in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if one.strip()])
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    return len([line for line in said.splitlines() if line.startswith("GPU ")])


# Seconds after which workers hang, less than exchange.timeout_s: then a rank waited for one that had ended. No test
# checks how fast it is.
WORKERS_LIMIT_S = 1100
NEEDED = ("torch", "nearstep")
# Whether in_turn.py runs this test, and has started a process whose forks are this one and its workers.
IS_IN_TURN = "NEARSTEP_FORKS" in os.environ
COMPILER = "torch._dynamo.backends.common"  # what compile() imports, for start_forks()


def missing(*names):
    """A sentence about missing packages; empty if there are none."""
    absent = [name for name in names if importlib.util.find_spec(name) is None]
    return f"{', '.join(absent)} not installed in the environment of {sys.executable}" if absent else ""


def need(*names):
    """Ends the program as one that was skipped, unless PyTorch, nearstep and these packages are here."""
    if absent := missing(*NEEDED, *names):
        verdict.end_skipped(absent)


def environment(**more):
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return dict(
        kept,
        **open_mpi.environment(),
        OMP_NUM_THREADS="1",
        TRANSFORMERS_VERBOSITY="error",
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        PYTHONDONTWRITEBYTECODE="1",
        **more,
    )


def start_forks(*modules, **variables):
    """A process that has imported these modules, if they are installed; workers are forks of it
    (tests/support/forked.py). PyTorch's first optimizer imports torch._dynamo, which would take each worker 1.2 CPU
    seconds. `variables` are for what the process loads at its own start. Under in_turn.py it is there already."""
    if programs.find("start_fork") and not IS_IN_TURN and not missing(*NEEDED):
        server = forked.Loaded(
            "python", sys.executable, *modules, "torch._dynamo", environment=environment(**variables)
        )
        atexit.register(server.close)
        os.environ.update(server.environment)


def python():
    """Returns the program that runs workers."""
    return str(programs.find("start_fork")) if "NEARSTEP_FORKS" in os.environ else sys.executable


def command(ranks, script, *arguments):
    """Returns the command that starts a worker in Python, or a program."""
    script = HERE / script
    words = [*([python()] if script.suffix == ".py" else []), str(script), *map(str, arguments)]
    if ranks > 1:
        words = [
            "mpirun",
            "--oversubscribe",
            "--bind-to",
            "none",
            "--mca",
            "mpi_yield_when_idle",
            "1",
            "--mca",
            "btl_vader_single_copy_mechanism",
            "none",
            "-np",
            str(ranks),
            *words,
        ]
    return words


class Process:
    """A worker on several ranks, in its own process group, as a terminal would start it."""

    def __init__(self, ranks, script, *arguments, **variables):
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command(ranks, script, *arguments),
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def wait(self, limit_s=WORKERS_LIMIT_S):
        """The exit code. On a time-out, ends the processes and raises subprocess.TimeoutExpired."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self.process.wait()
            print(self.text(), file=sys.stderr)
            raise

    def __del__(self):
        self.output.close()

    def text(self):
        self.output.seek(0)
        return self.output.read()


class FolderTest(facts.States, unittest.TestCase):
    needs_drive = False

    def setUp(self):
        within = scratch_on_drive() if self.needs_drive else scratch()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nearstep-python-", dir=within))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)


def scratch():
    """A folder below the build tree if there is one: its disk has direct I/O, which tmpfs may lack."""
    folder = pathlib.Path(os.environ.get("NEARSTEP_SCRATCH", HERE.parents[1] / "build/python-tests"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def scratch_on_drive():
    """Returns that folder, or another one aloud where it lies in memory, as in /dev/shm. Skips the test if both do."""
    from nearstep import _engine

    folders = (scratch(), pathlib.Path("/var/tmp"))
    for folder in folders:
        if not _engine.lies_in_memory(str(folder)):
            return folder
        print(f"launcher: {folder} lies in memory, and this test needs a drive", file=sys.stderr)
    raise unittest.SkipTest(f"{' and '.join(map(str, folders))} lie in memory: name a folder in NEARSTEP_SCRATCH")


main = verdict.main
