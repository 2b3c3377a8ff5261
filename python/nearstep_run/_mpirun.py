"""launch/mpirun and nearstep-run --site: checks the hosts of a site, and becomes mpirun with ranks on them. Used by
__init__.py. Standard library only."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

from . import _hosts, _machine, _open_mpi, _sites

_USE = "use launch/mpirun CONFIG SITE [-n RANKS] [OPTIONS of nearstep train]"
# Variables that every host needs of XRT, if cards are used, and by which the user sets networks. Open MPI forwards its
# own.
_FORWARDED = ("XILINX_XRT", "XRT_INI_PATH", "NEARSTEP_EMULATED_CARDS", "UCX_", "NCCL_")


def _ranks_that(plan, first: int, count: int, options: list, work: list) -> list:
    """mpirun's words for ``count`` consecutive ranks from ``first`` on, on their hosts."""
    rank, places = 0, []
    for host in plan.hosts:
        begin, rank = max(rank, first), rank + host.ranks
        if begin < min(rank, first + count):
            places.append(f"{host.name}:{min(rank, first + count) - begin}")
    where = [] if plan.hosts[0].name == "." else ["--host", ",".join(places)]
    return [*where, *options, "-np", str(count), *work]


def _options(plan, settings) -> list:
    """mpirun's options. Adds to the settings what hosts and network need."""
    is_here, cores = plan.hosts[0].name == ".", _machine.usable_cores()
    is_bound = plan.cores_per_rank > 0
    options = ["--bind-to", *(["core", "--map-by", f"slot:PE={plan.cores_per_rank}"] if is_bound else ["none"])]
    settings.set_start(is_oversubscribed=is_here and plan.ranks > cores)
    if is_here:
        settings.set_no_network()
        options += ["--oversubscribe"] if plan.ranks > cores else []
    else:
        settings.set_network(plan.interface)
        settings.set_remote(plan.remote)
    for name, value in sorted(settings.environment.items()):
        options += ["-x", name] if value and name.startswith(_FORWARDED) else []
    return options


def main(words: list, caller: str = "mpirun", use: str = _USE) -> NoReturn:
    _sites.begin()
    if len(words) < 2 or words[0].startswith("-") or words[1].startswith("-"):
        _sites.end(caller, use)
    request = _sites.Request(caller, words)
    plan = request.plan()
    threads = _machine.usable_cores() // plan.hosts[0].ranks  # for dry runs, which contact no host
    if not request.is_dry_run:
        threads, said = _hosts.check(request, plan)
        _sites.say(said)
    if request.is_check_only:
        raise SystemExit(0)
    if not plan.head and not request.is_dry_run:
        _open_mpi.expect(shutil.which("mpirun"), request.end)
    settings = _open_mpi.Settings()
    options = _options(plan, settings)
    given = settings.environment
    threads = (given.get("OMP_NUM_THREADS") or str(plan.cores_per_rank or threads)).partition(",")[0]  # of outer loops
    given["OMP_NUM_THREADS"] = str(max(int(threads), 1))
    spinning = "OMP_WAIT_POLICY" if given.get("OMP_WAIT_POLICY") else "GOMP_SPINCOUNT"
    options = ["-x", "OMP_NUM_THREADS", "-x", spinning, *options, *plan.mpirun_options]
    work = request.work()
    if request.is_bench:
        site = ["--site", request.site, "--link-gb-s", plan.network_gb_s, "--interface", plan.interface]
        work = [request.program, "bench", "network", *site, *request.options]
    # nearstep train knows by itself which ranks are storage ranks.
    stored = plan.storage_ranks if request.python else 0
    parts = _ranks_that(plan, 0, plan.ranks - stored, options, work)
    if stored:
        serve = [request.python, "-m", "nearstep", "serve"]
        parts += [":", *_ranks_that(plan, plan.ranks - stored, stored, options, serve)]
    # Variables become arguments of env, for a head that is another host.
    kept = ("OMPI_MCA_", "PRTE_MCA_", "OMPI_ALLOW_RUN_AS_ROOT", "UCX_", "NCCL_")
    variables = [f"{name}={given[name]}" for name in sorted(given) if name.startswith(kept)]
    variables = [f"OMP_NUM_THREADS={given['OMP_NUM_THREADS']}", f"{spinning}={given[spinning]}", *variables]
    limit = os.environ.get("NEARSTEP_TIMEOUT") or "0"
    _sites.run_at_head(request, plan, ["env", *variables, _sites.launch_file("notice"), limit, "mpirun", *parts])
