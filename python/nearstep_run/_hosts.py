"""Whether every host of a run has what it needs: what 'nearstep preflight' says there, compared with the first host's
answer. Used by launch/mpirun, and in a job by launch/slurm_job; nearstep-run only asks whether hosts are reached.
Standard library only."""

from __future__ import annotations

import concurrent.futures
import os
import re
import socket
import subprocess
import tempfile
import time

from ._sites import AS_ROOT, Request, elsewhere, end

_CLOCK_US = 3_000_000  # the difference between two clocks that is allowed
_UNREACHED = "unreached"
_AT_ONCE = 256  # hosts, of two open files each
_MOST_NAMED = 8  # hosts of a sentence


class Answer:
    """The answer of a host to the check: what it printed, and when it was asked and had answered, in microseconds.
    ``code``: the check's exit code."""

    def __init__(self, said: str, error: str, code, asked_us: int, answered_us: int):
        self.facts = dict(line.partition(" ")[::2] for line in reversed(said.splitlines()))
        self.error, self.code, self.asked_us, self.answered_us = error, code, asked_us, answered_us

    def number(self, name: str) -> int | None:
        """Returns the number that the host printed under the name; None if it printed none."""
        word = self.facts.get(name, "")
        return int(word) if re.fullmatch("0|[1-9][0-9]{0,17}", word) else None


def now_us() -> int:
    return time.time_ns() // 1000


class Checks:
    """The checks of one run's hosts: ``names``, which ``remote`` reaches. A program of that name and a config or, with
    Python, a script are the run's."""

    def __init__(self, caller: str, remote: str, program: str, config: str, python: str, names: list):
        self.caller, self.remote, self.program, self.config, self.python = caller, remote, program, config, python
        self.names = names

    def check(self, answers: list, ranks) -> str:
        """Ends with a sentence on the first host that lacks something. Returns one that says that all were checked."""
        for name, answer in zip(self.names, answers):
            self._check_answer(name, answer, answers[0])
        count, note = len(self.names), answers[0].facts.get("note")
        where = "this machine" if self.names[0] == "." else f"{count} hosts ({' '.join(self.names)})"
        return f"{self.caller}: {ranks} ranks on {where}, all checked{'; ' + note if note else ''}"

    def _check_answer(self, name: str, answer: Answer, first: Answer) -> None:
        host = "this machine" if name == "." else f"host {name}"
        lines = answer.error.strip().splitlines() or [""]
        if answer.code == 2:
            end(self.caller, f"{host}: {next((x[10:] for x in lines if x.startswith('nearstep: ')), lines[-1])}")
        if answer.code == _UNREACHED:
            words = f"{host} did not answer within 60 s: check that it is up and reached by {self.remote}"
            end(self.caller, words, 1)
        if answer.code != 0:
            where = f"check that {self.remote} reaches it and that {os.getcwd()} is there"
            said = lines[-1] or f"code {answer.code} and no word"
            end(self.caller, f"{host} could not be checked ({said}): {where}", 1)
        for key in ("commit", "program_xxh3", "data_xxh3", *(["package_sha256"] if self.python else [])):
            value, other = answer.facts.get(key), first.facts.get(key)
            if not value:
                end(self.caller, f"{host} gave no answer on its {key}: check what {self.remote} prints there")
            if value != other and (key, value) != ("data_xxh3", "none"):  # a storage host reads no text
                end(self.caller, self._difference(key, host, f"{value}, not {other}"))
        for key in ("time_us", "cores"):
            if answer.number(key) is None:
                end(self.caller, f"{host} gave no number as its {key}: check what {self.remote} prints there")
        # The host's clock was read between two reads of ours.
        slow, fast = answer.asked_us - answer.number("time_us"), answer.number("time_us") - answer.answered_us
        for by, word in ((slow, "slow"), (fast, "fast")):
            if by > _CLOCK_US:
                end(self.caller, f"the clock of {host} is {by // 1000000} s {word}: set it, with NTP for one")

    def _difference(self, key: str, host: str, values: str) -> str:
        first = self.names[0]
        if key == "data_xxh3":
            what = f"another script {self.config}" if self.python else "other text in data.train or data.valid"
            return f"{host} has {what} than {first} (XXH3 {values}): copy it from there"
        if key == "package_sha256":
            return (
                f"{host} has another package nearstep, or another version of PyTorch, for {self.python} than {first}: "
                "install the same ones on all hosts"
            )
        what = f"another build of {self.program}"
        return f"{host} has {what} than {first} ({key} {values}): install the same one on all hosts"


def _reach(remote: list, name: str) -> int:
    """Returns the exit code of the command true on the host; 124 or 137 if it does not answer within 60 s."""
    words, nothing = ["timeout", "-k", "5", "60", *remote, name, "true"], subprocess.DEVNULL
    return subprocess.run(words, stdin=nothing, stdout=nothing, stderr=nothing).returncode


def _is_here(name: str) -> bool:
    """Whether the name is this machine's, or that of one of its addresses. mpirun starts no program there."""
    try:
        found = socket.getaddrinfo(name.rpartition("@")[2], 0, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, address in found:
            with socket.socket(family, kind, protocol) as one:
                one.bind(address)
                return True
    except OSError:
        pass
    return name.rpartition("@")[2] in (os.uname().nodename, os.uname().nodename.partition(".")[0])


def expect_answers(remote: list, names: list, end_run) -> None:
    """Calls ``end_run`` with a sentence if some hosts are not reached."""
    with concurrent.futures.ThreadPoolExecutor(min(len(names), _AT_ONCE)) as pool:
        reached = list(pool.map(lambda name: _is_here(name) or _reach(remote, name) == 0, names))
    lost = [name for name, is_reached in zip(names, reached) if not is_reached]
    if lost:
        more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
        end_run(
            f"No rank began, since {', '.join(lost[:_MOST_NAMED])}{more} cannot be reached: check that each is "
            f"up, and that '{' '.join(remote)} HOST true' works without a password"
        )


def _ask(request: Request, remote: str, number: int, name: str) -> Answer:
    words = [request.program, "preflight", *request.asked(), *request.preflight, "--host", str(number)]
    words = ["env", *(f"{key}={value}" for key, value in AS_ROOT.items()), *words]
    if name != ".":
        # A running host answers soon; reading and encoding the text may take long.
        if _reach([remote], name) in (124, 137):
            return Answer("", "", _UNREACHED, 0, 0)
        words = [remote, name, elsewhere(words)]
    limit = ["timeout", "-k", "5", os.environ.get("NEARSTEP_TIMEOUT") or "86400"]
    # Files, since what a remote program leaves in the background may hold a pipe.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as error:
        asked_us = now_us()
        code = subprocess.run([*limit, *words], stdin=subprocess.DEVNULL, stdout=said, stderr=error).returncode
        answered_us = now_us()
        texts = [os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace") for file in (said, error)]
    return Answer(*texts, code, asked_us, answered_us)


def check(request: Request, plan) -> tuple[int, str]:
    """Asks the hosts at once. Returns how many threads the cores allow a rank where the most ranks share a machine,
    since several hosts may share one, and what to say of it."""
    names = [host.name for host in plan.hosts]
    with concurrent.futures.ThreadPoolExecutor(min(len(names), _AT_ONCE)) as pool:
        try:
            answers = list(pool.map(lambda one: _ask(request, plan.remote, *one), enumerate(names)))
        except OSError as error:
            request.end(f"the hosts cannot be asked ({error}): make room for temporary files, or set TMPDIR")
    checks = Checks(request.caller, plan.remote, request.program, request.config, request.python, names)
    said = checks.check(answers, plan.ranks)
    ranks, cores = {}, {}
    for host, answer in zip(plan.hosts, answers):
        machine = answer.facts.get("machine") or host.name
        ranks[machine] = ranks.get(machine, 0) + host.ranks
        cores[machine] = answer.number("cores")
    return max(min(cores[one] // ranks[one] for one in ranks), 1), said


def check_nodes(words: list) -> None:
    """The check of a job's nodes, for launch/slurm_job: FILE ASKED_US ANSWERED_US PROGRAM CONFIG PYTHON RANKS NODE...
    FILE has what srun --label printed."""
    file, asked_us, answered_us, program, config, python, ranks, *names = words
    with open(file, errors="replace") as lines:
        said = [re.match(r" *(\d+): (.*)", line) for line in lines]
    answers = []
    for node in range(len(names)):
        own = [one[2] for one in said if one and int(one[1]) == node]
        code = next((int(line[5:]) for line in own if re.fullmatch("code [0-9]{1,9}", line)), 0)
        text = "\n".join(line for line in own if not line.startswith("code "))
        answers.append(Answer(text, text, code, int(asked_us), int(answered_us)))
    checks = Checks("slurm_job", "srun", program, config, python, names)
    print(checks.check(answers, ranks))
