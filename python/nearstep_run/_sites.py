"""Has what a user asks of launch/mpirun and launch/slurm, the plan of ranks and hosts that the program nearstep makes
of it, and the command on the host that begins. Used by _mpirun.py, _hosts.py and _slurm.py. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
from typing import NoReturn

HERE = pathlib.Path(__file__).resolve().parent
_IS_INSTALLED = (HERE / "launch").is_dir()  # as a package; else it is that of a checkout
_MOST_OF_HOSTS = 100_000  # Linux takes 131,071 bytes in one word, and a line for a head has other words, too
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# These options make a run continue one that has steps left, or replace it.
_TAKES_UNFINISHED = re.compile("--(resume|resume-if-any|fresh|from|from=.*)")


def end(caller: str, words: str, code: int = 2) -> NoReturn:
    """Code 2 is for the user's mistakes, 1 for an error that may pass on another try."""
    say(f"{caller}: {words}")
    sys.exit(code)


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def begin() -> None:
    """Signals end a launcher, and what it becomes, as they end other programs."""
    for number in (signal.SIGINT, signal.SIGPIPE):
        if number == signal.SIGPIPE or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def shown(path) -> str:
    """A path as from the folder of the user, if it is in there."""
    path, here = os.path.abspath(path), os.getcwd()
    return os.path.relpath(path) if pathlib.Path(path).is_relative_to(here) else path


def launch_file(name: str) -> str:
    """A file of the folder launch: the package's, or that of the checkout."""
    return shown((HERE if _IS_INSTALLED else HERE.parents[1]) / "launch" / name)


@dataclasses.dataclass
class Host:
    name: str  # . is this machine
    ranks: int
    devices: int


@dataclasses.dataclass
class Plan:
    """The plan that 'nearstep hosts' prints. The last ``storage_ranks`` of the ranks are storage ranks, and the last
    ``storage_hosts`` of the hosts have one of these each."""

    ranks: int
    storage_ranks: int
    storage_hosts: int
    cores_per_rank: int
    interface: str
    remote: str
    head: str
    network_gb_s: str
    mpirun_options: list
    sbatch_options: list
    storage_sbatch_options: list
    hosts: list


class Request:
    """The words of a user: CONFIG or SCRIPT.py, SITE, and options. For launch/slurm those before -- are sbatch's, and
    those behind a : there are those of storage hosts."""

    def __init__(self, caller: str, words: list):
        self.caller, (self.config, self.site, *words) = caller, words
        self.ranks = self.python = ""
        self.settings, self.options, self.sbatch, self.storage_sbatch, self.preflight = [], [], [], [], []
        self.is_check_only = self.is_bench = self.is_dry_run = False
        program, python = f"{sys.prefix}/bin/nearstep", sys.executable
        if not _IS_INSTALLED:
            program = shown(HERE.parents[1] / "build/release/nearstep")
            python = f"{os.environ.get('NEARSTEP_VENV') or shown(HERE.parents[1] / '.venv')}/bin/python"
        self.program = os.environ.get("NEARSTEP_PROGRAM") or program
        if self.config.endswith(".py"):
            self.python = os.environ.get("NEARSTEP_PYTHON") or python
        self._check_surroundings()
        self._read(words)

    def end(self, words: str, code: int = 2) -> NoReturn:
        end(self.caller, words, code)

    def _check_surroundings(self) -> None:
        if self.python and not os.path.isfile(self.config):
            self.end(f"there is no script {self.config}: name one that exists")
        if self.python and not os.access(self.python, os.X_OK):
            self.end(
                f"there is no {self.python}: run launch/setup, or name a Python that has nearstep in NEARSTEP_PYTHON"
            )
        limit = [launch_file("notice"), os.environ.get("NEARSTEP_TIMEOUT") or "0"]
        if subprocess.run(limit, stdin=subprocess.DEVNULL).returncode != 0:
            sys.exit(2)
        threads = os.environ.get("OMP_NUM_THREADS") or "1"
        if not re.fullmatch("(0|[1-9][0-9]{0,5})(,[1-9][0-9]{0,5})*", threads):
            self.end(f"OMP_NUM_THREADS is '{threads}': give a number of threads, as in 4, or unset it")
        if not os.access(self.program, os.X_OK):
            self.end(f"there is no program {self.program}: build it with launch/build release nearstep")

    def _read(self, words: list) -> None:
        rest = iter(words)
        others = self.sbatch if self.caller == "slurm" else self.options
        for word in rest:
            if word == "-n":
                self.ranks = next(rest, "")
                if not re.fullmatch("[1-9][0-9]*", self.ranks):
                    self.end(f"-n takes a number of ranks, 1 or more, not '{self.ranks}'")
            elif word == "--dry-run":
                self.is_dry_run = True
            elif word in ("--check", "--bench-network"):
                if self.caller == "slurm":
                    self.end(
                        f"{word} is launch/mpirun's: a job checks its nodes, and may run srun nearstep bench network"
                    )
                self.is_check_only |= word == "--check"
                if word == "--bench-network":
                    self.is_bench, self.preflight = True, ["--takes-unfinished"]
            elif word == "--":
                others = self.options
                others += rest if self.python else ()
            elif word == "--set" or word.startswith("--set="):
                setting = word[6:] if word != "--set" else next(rest, None)
                if setting is None:
                    self.end("--set needs KEY=VALUE behind it")
                self.settings.append(f"--set={setting}")
            elif word == ":" and others is not self.options:
                others = self.storage_sbatch
            else:
                others.append(word)
                if _TAKES_UNFINISHED.fullmatch(word):
                    self.preflight = ["--takes-unfinished"]
        if self.python and self.settings:
            self.end("--set is for a config: pass a script its own arguments behind --")

    def work(self) -> list:
        """Returns the command that each rank runs."""
        if self.python:
            return [self.python, self.config, *self.options]
        return [self.program, "train", self.config, "--site", self.site, *self.settings, *self.options]

    def asked(self) -> list:
        """Returns the arguments for 'nearstep hosts' and 'nearstep preflight'."""
        what = ["--script", self.config, "--python", self.python] if self.python else [self.config, *self.settings]
        return [*what, "--site", self.site, *(["--ranks", self.ranks] if self.ranks else [])]

    def plan(self) -> Plan:
        command = ["timeout", "-k", "5", "60", self.program, "hosts", *self.asked()]
        done = subprocess.run(command, stdout=subprocess.PIPE, env={**os.environ, **AS_ROOT})
        if done.returncode != 0:
            sys.exit(2)
        lines = [line.partition(" ")[::2] for line in done.stdout.decode(errors="surrogateescape").splitlines()]
        said = dict(lines)
        try:
            hosts = [value.rsplit(" ", 2) for name, value in lines if name == "host"]
            fields = {field.name: field.type for field in dataclasses.fields(Plan) if field.name != "hosts"}
            read = {"int": int, "list": json.loads, "str": str}
            plan = Plan(
                **{name: read[kind](said[name]) for name, kind in fields.items()},
                hosts=[Host(name, int(ranks), int(devices)) for name, ranks, devices in hosts],
            )
        except (KeyError, ValueError):
            self.end(
                f"'{self.program} hosts' gave no plan of ranks and hosts: name a program nearstep of this version in "
                "NEARSTEP_PROGRAM"
            )
        named = sum(len(f"{host.name}:{host.ranks},".encode()) for host in plan.hosts)
        if self.caller != "slurm" and named > _MOST_OF_HOSTS:
            self.end(
                f"the names of {len(plan.hosts)} hosts take {named} bytes of mpirun's command line, which has room for "
                f"{_MOST_OF_HOSTS}: start fewer ranks with -n, use shorter names, or start the run by launch/slurm"
            )
        if plan.hosts[0].name != "." and not self.is_dry_run:
            if not shutil.which(plan.remote):
                self.end(
                    f'hosts.remote = "{plan.remote}" of site {self.site} is no program: install it, or name another'
                )
            plan.remote = os.path.abspath(shutil.which(plan.remote))
        return plan


def elsewhere(command: list) -> str:
    """A command as one line for a shell on another host, run in the current folder."""
    return f"cd {shlex.quote(os.getcwd())} && {shlex.join(command)}"


def run_at_head(request: Request, plan: Plan, command: list) -> NoReturn:
    """Becomes the command, on the site's head or here. With --dry-run only prints it."""
    if request.is_dry_run:
        print(f"on {plan.head} by {plan.remote}: " * bool(plan.head) + shlex.join(command))
        sys.exit(0)
    if plan.head and request.caller != "slurm":
        sys.exit(_run_and_notify(plan.remote, plan.head, command))
    if plan.head:
        command = [plan.remote, plan.head, elsewhere(command)]
    sys.stdout.flush()
    os.execvp(command[0], command)


def _run_and_notify(remote: str, head: str, command: list) -> int:
    """Runs a command of launch/notice on another host and forwards the notices received here."""
    file = (
        f"/tmp/nearstep-notice-{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(8)}"  # nobody can make it first
    )
    at = command.index(launch_file("notice")) + 1
    command = [*command[:at], "--pid", file, *command[at:]]
    # In a process group of its own, so that a signal to ours does not end the connection.
    job = subprocess.Popen([remote, head, elsewhere(command)], preexec_fn=os.setpgrp)

    def forward(number, _frame):
        name = "USR1" if number in (signal.SIGTERM, signal.SIGUSR1) else "INT"
        subprocess.Popen([remote, head, f"kill -{name} $(cat {file})"], stdin=subprocess.DEVNULL)

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    code = job.wait()
    return 128 - code if code < 0 else code
