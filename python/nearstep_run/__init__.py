"""The program nearstep-run: starts ranks on this machine, on the hosts of a file or in a Slurm allocation. It takes
torchrun's options, and MPI finds the ranks. With --site it starts ranks on the hosts of a site, as launch/mpirun does.
Standard library only."""

from __future__ import annotations

import argparse
import ctypes
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

from nearstep_output.options import Parser

from . import _hosts, _machine, _mpirun, _open_mpi, _sites
from ._boxes import Boxes

_PR_SET_PDEATHSIG = 1
_INTERRUPTS = (signal.SIGINT, signal.SIGHUP)
_SAID = (
    2,
    75,
    *(128 + number for number in _INTERRUPTS),
)  # a mistake of the user's, a stop on request, the user's own interrupt
_LEFT_OUT = (
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--max-restarts",
    "--role",
    "--monitor-interval",
    "--log-dir",
    "--redirects",
    "--tee",
    "--start-method",
)
_NUMBER_OF_GPUS = ("auto", "gpu")
_MOST_DIGITS = 6
_OF_A_HOST = (
    "slots",
    "max_slots",
    "max-slots",
    "cpu",
    "cpu_max",
    "cpu-max",
    "count",
    "count_max",
    "count-max",
    "username",
)
_MOST_HOSTS = 65536  # as nearstep plan takes


def _fail(words: str, code: int = 2) -> None:
    print(f"nearstep-run: {words}", file=sys.stderr)
    sys.exit(code)


def _parser() -> Parser:
    parser = Parser(
        prog="nearstep-run",
        allow_abbrev=False,
        description="Starts a program on several ranks: nearstep-run --nproc-per-node 4 train.py",
        usage="nearstep-run [--nproc-per-node N] [--nnodes N] [--hostfile FILE] [-m | --no-python] PROGRAM "
        "[ARGUMENT...]\n       nearstep-run --site SITE CONFIG or SCRIPT.py [-n RANKS] [--check | --dry-run] "
        "[OPTION...]",
    )
    parser.add_argument(
        "--nproc-per-node", default="1", metavar="N", help="ranks on each host; auto or gpu: one per GPU"
    )
    parser.add_argument(
        "--nnodes", metavar="N", help="hosts; default: those of the file, of the Slurm allocation, or this one"
    )
    parser.add_argument("--hostfile", metavar="FILE", help="a host on each line, as mpirun takes it")
    parser.add_argument("--standalone", action="store_true", help="this machine, also within a Slurm allocation")
    parser.add_argument("-m", "--module", action="store_true", help="PROGRAM is a Python module")
    parser.add_argument("--no-python", action="store_true", help="PROGRAM is started as it is, not by Python")
    for option in _LEFT_OUT:
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT").required = False
    return parser


def _with_hyphens(words: list) -> list:
    """Options may be written with underscores, as torchrun's."""
    return [
        word.partition("=")[0].replace("_", "-") + "".join(word.partition("=")[1:]) if word.startswith("--") else word
        for word in words
    ]


def _parse(words: list):
    # Arguments after PROGRAM belong to the program.
    first = next(
        (i for i, word in enumerate(words) if not word.startswith("-") and (i == 0 or not _takes_value(words[i - 1]))),
        len(words),
    )
    options = _parser().parse_args(_with_hyphens(words[:first]) + words[first:])
    for option in _LEFT_OUT:
        if getattr(options, option[2:].replace("-", "_")) is not None:
            _fail(f"leave {option} out: MPI finds the ranks, and --hostfile names the hosts if Slurm does not")
    return options


def _takes_value(word: str) -> bool:
    option = word.replace("_", "-")
    return option in ("--nproc-per-node", "--nnodes", "--hostfile", *_LEFT_OUT)


def _gpus() -> int:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return len([one for one in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if one.strip()])
    folder = pathlib.Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _number(name: str, word: str) -> int:
    if not re.fullmatch("[0-9]+", word) or not word.strip("0"):
        _fail(f"{name} takes a number of 1 or more, not '{word}'")
    if len(word) > _MOST_DIGITS:
        _fail(f"{name} takes a number of at most {_MOST_DIGITS} digits, not of {len(word)}")
    return int(word)


def _hosts_of_slurm() -> int:
    return _number("SLURM_NNODES", os.environ.get("SLURM_NNODES") or "1")


def _hosts_in(hostfile: str) -> dict:
    """The hosts that mpirun will read there, each with its name for ssh."""
    path = pathlib.Path(hostfile)
    if path.exists() and not path.is_file():
        _fail(f"the host file {hostfile} is no regular file: name a file with a host on each line")
    try:
        lines = path.read_bytes().decode().split("\n")
    except OSError as error:
        _fail(f"the host file {hostfile} cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        _fail(f"the host file {hostfile} is no text: name a host on each line")
    hosts, with_slots = {}, set()
    for number, line in enumerate(lines, 1):
        if line.endswith("\r"):
            _fail(f"line {number} of {hostfile} ends as on Windows, which mpirun does not take: write it by dos2unix")
        host, *words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split() or [""]
        if host and not re.fullmatch(r"\^?\w[\w.:@%-]*", host, re.ASCII):
            _fail(f"line {number} of {hostfile} names no host: write a host's name, and slots=NUMBER behind it")
        for word in words:
            name, _, value = word.partition("=")
            if name not in _OF_A_HOST:
                _fail(f"line {number} of {hostfile} has {word}: write slots=NUMBER behind the host's name")
            if name != "username" and not re.fullmatch("[1-9][0-9]{0,5}", value):
                _fail(f"line {number} of {hostfile} has {word}: {name} takes a number of 1 to 999999")
        if host in hosts and (words or host in with_slots):
            _fail(f"line {number} of {hostfile} names {host} again: name it once, with all of its slots")
        with_slots |= {host} if words else set()
        if host:
            user = next((word[9:] for word in words if word.startswith("username=")), "")
            hosts[host] = f"{user}@{host}" if user else host
    if not hosts:
        _fail(f"the host file {hostfile} names no host: name one on each line")
    if len(hosts) > _MOST_HOSTS:
        _fail(f"the host file {hostfile} names {len(hosts)} hosts: name those of this run, {_MOST_HOSTS} at most")
    return hosts


def _hosts_of(options) -> int:
    """How many hosts; 1: this one."""
    if options.standalone:
        return 1
    if options.hostfile:
        there = len(_hosts_in(options.hostfile))
    else:
        there = _hosts_of_slurm()
        absent = [name for name in ("SLURM_JOBID", "SLURM_NODELIST") if not os.environ.get(name)]
        if there > 1 and absent and options.nnodes != "1":
            _fail(
                f"SLURM_NNODES is {there}, and {' and '.join(absent)}, by which mpirun finds the hosts, is not set: "
                "name the hosts with --hostfile FILE, or type --standalone for this machine"
            )
    hosts = _number("--nnodes", options.nnodes) if options.nnodes else there
    if hosts > there:
        where = (
            f"{options.hostfile} has {there}"
            if options.hostfile
            else "this is one machine"
            if there == 1
            else f"Slurm gave {there}"
        )
        _fail(f"--nnodes is {hosts}, and {where}: name the hosts with --hostfile FILE, one on each line")
    return hosts


def _expect_answers(hostfile: str) -> None:
    """Asks the hosts of the file, since Open MPI 4.1 may wait without end for one that does not answer. In an
    allocation of Slurm's mpirun reaches them by srun."""
    settings = _open_mpi.Settings()
    agent = settings.agent()
    is_other = "SLURM_JOBID" in os.environ or "plm" in settings.environment.get("MPIRUN_OPTIONS", "")
    names = [name for host, name in _hosts_in(hostfile).items() if not host.startswith("^")]
    if agent and names and not is_other:
        _hosts.expect_answers(agent, names, lambda words: _fail(words, 1))


def _is_module(name: str) -> bool:
    """Whether Python finds the module from here. Imports nothing, so that a parent's own search is not known."""
    sys.path.insert(0, os.getcwd())
    first, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(first) if first else None
        for part in rest:
            places = None if spec is None else spec.submodule_search_locations
            spec = None if places is None else importlib.machinery.PathFinder.find_spec(part, list(places))
    except (ImportError, ValueError):
        spec = None
    finally:
        del sys.path[0]
    return spec is not None


def _command_of(options) -> list:
    if options.no_python:
        if shutil.which(options.program) is None:
            _fail(f"there is no program {options.program}: name one that exists")
        return [options.program, *options.arguments]
    if not options.module and not pathlib.Path(options.program).is_file():
        _fail(f"there is no script {options.program}: name one that exists, or a module with -m")
    if options.module and not _is_module(options.program):
        _fail(f"there is no module {options.program}: name one that {sys.executable} finds from this folder")
    return [sys.executable, *(["-m"] if options.module else []), options.program, *options.arguments]


def _places(options, hosts: int, ranks: int) -> list:
    """mpirun's options that say which hosts."""
    if hosts == 1 and not options.hostfile:
        is_within_others = _hosts_of_slurm() > 1
        return (
            ["--host", f"{os.environ.get('SLURMD_NODENAME', os.uname().nodename)}:{ranks}"] if is_within_others else []
        )
    where = ["--hostfile", os.path.abspath(options.hostfile)] if options.hostfile else []
    return [*where, "--map-by", f"ppr:{ranks}:node", "-x", "PATH", "-x", "OMP_NUM_THREADS"]


def _say_end(code: int, boxes: Boxes, ranks: int) -> None:
    if not boxes.has_begun:
        print(
            "nearstep-run: No rank began, since mpirun did not reach every host, and what it said is above: check "
            "that each host can be "
            "reached by ssh without a password.",
            file=sys.stderr,
        )
        return
    who = "A rank" if boxes.rank is None else f"Rank {boxes.rank}"
    if code - 128 in {one.value for one in signal.Signals}:
        name = signal.Signals(code - 128).name
        why = "; the system does so when memory runs out" if code == 128 + signal.SIGKILL else ""
        words = f"{who} was ended by {name}{why}"
    elif code == 124:
        words = f"The run took longer than NEARSTEP_TIMEOUT={os.environ.get('NEARSTEP_TIMEOUT')} s"
    elif not boxes.has_ended:
        words = f"The run ended with code {code}, and what was said is above"
    else:
        words = f"{who} ended with code {code}, and what it said is above"
    print(
        f"nearstep-run: {words}{', so all ' + str(ranks) + ' ranks have ended' if ranks > 1 else ''}.", file=sys.stderr
    )


def _end_with_parent() -> None:
    """Makes the kernel send the ranks a notice to stop if nearstep-run is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _with_mpirun(places: list, hosts: int, ranks: int, command: list) -> tuple[list, dict]:
    """The words and the environment of launch/notice with mpirun. Threads per rank: OMP_NUM_THREADS if set, else an
    equal share of the machine's cores. MPIRUN_OPTIONS is passed on."""
    cores, settings = _machine.usable_cores(), _open_mpi.Settings()
    settings.set_start(is_oversubscribed=ranks > cores)
    if hosts == 1:
        settings.set_no_network()
    given = settings.environment
    given["OMP_NUM_THREADS"] = given.get("OMP_NUM_THREADS") or str(max(cores // ranks, 1))
    options = ["--oversubscribe", "--bind-to", "none", *places, *given.get("MPIRUN_OPTIONS", "").split()]
    notice = [_sites.launch_file("notice"), given.get("NEARSTEP_TIMEOUT") or "0"]
    return [*notice, "mpirun", *options, "-np", str(ranks), *command], given


def _start(command_and_environment: tuple[list, dict]) -> tuple[int, Boxes]:
    """Runs mpirun. Returns its exit code, or that of an interrupt, and what it said in boxes."""
    command, environment = command_and_environment
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, preexec_fn=_end_with_parent)
    interrupts = []

    def forward(number, _frame):
        interrupts.extend([number] if number in _INTERRUPTS else [])
        process.send_signal(number)

    # A shell ignores SIGINT for what it starts in the background, and nohup ignores SIGHUP.
    heard = [number for number in _INTERRUPTS if signal.getsignal(number) != signal.SIG_IGN]
    for number in (signal.SIGTERM, signal.SIGUSR1, *heard):
        signal.signal(number, forward)
    boxes = Boxes()
    while data := os.read(process.stderr.fileno(), 1 << 16):
        os.write(2, boxes.add(data))
    os.write(2, boxes.rest())
    code = process.wait()
    return (128 + interrupts[0] if interrupts else code), boxes


def main(words: list | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["--site"]:
        use = "use nearstep-run --site SITE CONFIG or SCRIPT.py, then the options of launch/mpirun"
        _mpirun.main([*words[2:3], *words[1:2], *words[3:]], "nearstep-run", use)
    options = _parse(words)
    counts_gpus = options.nproc_per_node in _NUMBER_OF_GPUS
    count = str(_gpus()) if counts_gpus else options.nproc_per_node
    if counts_gpus and count == "0":
        _fail(f"--nproc-per-node {options.nproc_per_node}: there is no GPU here, so say how many ranks")
    per_host = _number("--nproc-per-node", count)
    hosts = _hosts_of(options)
    command = _command_of(options)
    mpirun = _open_mpi.find_mpirun()
    if mpirun is None and per_host * hosts == 1:
        os.execvp(command[0], command)
    _open_mpi.expect(mpirun, _fail)
    if mpirun != shutil.which("mpirun"):
        os.environ["PATH"] = os.pathsep.join((os.path.dirname(mpirun), os.environ.get("PATH", os.defpath)))
    if options.hostfile and not options.standalone:
        _expect_answers(options.hostfile)
    code, boxes = _start(_with_mpirun(_places(options, hosts, per_host), hosts, per_host * hosts, command))
    code = 128 - code if code < 0 else code
    if code != 0 and code not in _SAID:
        _say_end(code, boxes, per_host * hosts)
    return code
