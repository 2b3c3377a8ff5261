"""launch/slurm: submits a run as a job, and does for launch/slurm_job, the job's script, what the launchers have in
common. Standard library only."""

from __future__ import annotations

import os
import re
import shutil
from typing import NoReturn

from . import _hosts, _open_mpi, _sites

_USE = "use launch/slurm CONFIG SITE [-n RANKS] [OPTIONS of sbatch] [-- OPTIONS of nearstep train]"
_NOTICE = 120  # as launch/slurm_job asks for


def _ask_for(request, plan, hosts: list) -> list:
    """sbatch's options for these hosts."""
    name = os.path.basename(os.path.splitext(request.config)[0])
    devices = max(host.devices for host in hosts)
    ranks = [host.ranks for host in hosts]
    return [
        *(f"--nodes={len(hosts)}", f"--ntasks={sum(ranks)}", f"--ntasks-per-node={max(ranks)}"),
        *([f"--gres=csd:{devices}"] if devices else []),
        *(f"--job-name=nearstep-{name}", f"--chdir={os.getcwd()}"),
        *([f"--cpus-per-task={plan.cores_per_rank}"] if plan.cores_per_rank else []),
    ]


def _seconds(time: str) -> int | None:
    """Returns the seconds of a time limit as sbatch takes it; None if it has none, or if it is for sbatch to refuse."""
    found = re.fullmatch("(?:([0-9]{1,6})-)?([0-9]{1,9}(?::[0-9]{1,9}){0,2})", time)
    if not found:
        return None
    parts = [int(part) for part in found[2].split(":")]
    if found[1]:  # days-hours[:minutes[:seconds]]
        parts = [*parts, 0, 0]
    elif len(parts) < 3:  # minutes[:seconds]
        parts = [0, *parts, 0]
    return ((int(found[1] or 0) * 24 + parts[0]) * 60 + parts[1]) * 60 + parts[2]


def _limit(options: list) -> str:
    limit = os.environ.get("SBATCH_TIMELIMIT", "")
    for last, word in zip(["", *options], options):
        given = re.fullmatch("(?:--time=|-t)(.+)", word)
        limit = word if last in ("-t", "--time") else given[1] if given else limit
    return limit


def _refuse(request, parts: list, notice: int) -> None:
    for options in parts:
        limit = _limit(options)
        if 0 < (_seconds(limit) or 0) <= notice:
            request.end(
                f"the job's time {limit} is over before its notice of {notice} s: give it more with --time, or a "
                "shorter notice with --signal=USR1@SECONDS"
            )
    words = [word for options in parts for word in options]
    array = os.environ.get("SBATCH_ARRAY_INX")
    for word in [*words, *([] if array is None else [f"--array={array}"])]:
        if re.match("--array|-a", word):
            request.end(
                f"the tasks of an array ({word}) would share the state of one run: submit a job for each, with a "
                "csd.path of its own"
            )
        if re.match("--chdir|-D", word) and word != f"--chdir={os.getcwd()}":
            here = os.getcwd()
            request.end(
                f"a job of nearstep's runs in {here}, not elsewhere ({word}): give paths from there, or whole ones"
            )


def _submit(words: list) -> NoReturn:
    if len(words) < 2 or words[0].startswith("-") or words[1].startswith("-"):
        _sites.end("slurm", _USE)
    request = _sites.Request("slurm", words)
    plan = request.plan()
    compute = len(plan.hosts) - plan.storage_hosts
    parts = [[*_ask_for(request, plan, plan.hosts[:compute]), *plan.sbatch_options, *request.sbatch]]
    if plan.storage_hosts:
        options = [*plan.storage_sbatch_options, *request.storage_sbatch]
        parts.append([*_ask_for(request, plan, plan.hosts[compute:]), "--requeue", *options])
    elif request.storage_sbatch:
        request.end(
            f"options behind : are for storage hosts, and site {request.site} has none: leave them out, or name some "
            "in hosts.storage"
        )
    signals = [re.fullmatch("(?:--signal=)?[RB:]*(?:SIG)?USR1@([0-9]+)", word) for part in parts for word in part]
    notice = int(next((found[1] for found in reversed(signals) if found), _NOTICE))
    _refuse(request, parts, notice)
    # Variables are passed as arguments, because the job may have none of this environment (--export=NONE).
    settings = _open_mpi.Settings()
    settings.set_start(is_oversubscribed=True)
    kept = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    variables = [f"{name}={value}" for name in kept if (value := settings.environment.get(name))]
    job = [_sites.launch_file("slurm_job"), os.path.dirname(_sites.launch_file("slurm_job")) or "."]
    job += [request.program, request.site, plan.interface, f"NEARSTEP_NOTICE={notice}", *variables]
    if not request.is_dry_run and not plan.head and not shutil.which("sbatch"):
        request.end("there is no sbatch here: run this where jobs are submitted, or name that host as hosts.head")
    options = [word for part in parts for word in (":", *part)][1:]
    _sites.run_at_head(request, plan, ["sbatch", *options, *job, "--", *request.work()])


def main(words: list) -> NoReturn:
    """Runs launch/slurm. The job's script calls it with --nodes WORDS..., see _hosts.check_nodes, and with --network
    INTERFACE COMMAND..., which it becomes with the settings of Open MPI's network."""
    _sites.begin()
    if words[:1] == ["--nodes"]:
        _hosts.check_nodes(words[1:])
    elif words[:1] == ["--network"]:
        settings = _open_mpi.Settings()
        settings.set_start(is_oversubscribed=True)
        settings.set_network(words[1])
        os.execvpe(words[2], words[2:], settings.environment)
    else:
        _submit(words)
    raise SystemExit(0)
