"""Trains a small network, from where its state is, to a number of steps.

    durable_worker.py FOLDER STEPS [--end=WHAT@RANK@STEP] [--from-storage] [--log] [--passes]  a run of mpirun's ranks
    durable_worker.py --campaign FOLDER KILLS [--log]                          on one rank, killed at random instants

FOLDER/losses-RANK.txt gets a line per step: its number and the loss, in hexadecimal. FOLDER/digest gets the masters'
digest. WHAT: exception, exit (between backward() and step()), leave (between two steps), kill, sums (kill, after the
step's first backward()), sleep, evaluate (after the last step, which is the other ranks' end). With --from-storage
parameters stay in storage. With --log FOLDER/log has logs. With --passes a step has three of backward().
"""

import json
import os
import pathlib
import random
import signal
import sys
import time

import torch

import nearstep
import networks


def train(folder, steps, end=("", 0, 0), stream=None):
    what, on_rank, at = end
    model = networks.Layers(3, 200)
    passes = 3 if "--passes" in sys.argv else 1
    opt = nearstep.AdamW(
        nearstep.groups(model, weight_decay=0.1),
        lr=1e-3,
        clip_norm=1.0,
        path=folder / "state",
        log=folder / "log" if "--log" in sys.argv else None,
        stream=stream,
        accumulation=passes if passes > 1 else None,
        config={"checkpoint.path": str(folder / "checkpoints")},
    )
    start = opt.resume()
    for group in opt.param_groups:
        group["initial_lr"] = 1e-3
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 1 / (1 + step / 8), last_epoch=start - 1)
    (folder / "starts.txt").open("a").write(f"{opt.rank} {opt.ranks} {start}\n")
    losses = (folder / f"losses-{opt.rank}.txt").open("a", buffering=1)
    for step in range(start, steps):
        is_here = (opt.rank, step) == (on_rank, at)
        if is_here and what == "exception":
            raise RuntimeError("raised on one rank")
        if is_here and what == "leave":
            sys.exit(0)
        if is_here and what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_here and what == "sleep":
            (folder / "sleeps").touch()
            time.sleep(60)
        for number in range(passes):
            loss = model.loss((step + number) % 4, opt.rank, opt.ranks)
            losses.write(f"{step} {loss.item().hex()}\n")
            loss.backward()
            if is_here and what == "sums":
                os.kill(os.getpid(), signal.SIGKILL)
        if is_here and what == "exit":
            sys.exit(0)
        opt.step()
        scheduler.step()
        opt.zero_grad()
    digest = opt.masters_digest()
    if opt.rank == 0:
        (folder / "digest").write_text(str(digest))
    if what == "evaluate" and opt.rank == on_rank:
        time.sleep(2)  # the others have ended
        with torch.no_grad():
            (folder / "evaluated").write_text(str(model.loss(0).item()))


def in_child(work, kill_after_s=None):
    """Runs `work` in a forked process, which already has all modules; kills it after some time. Returns its exit code,
    or minus the signal, and its seconds."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        work()
        sys.exit(0)
    ended = 0
    while kill_after_s is not None and not ended:
        ended, status = os.waitpid(child, os.WNOHANG)
        if not ended and time.monotonic() - began > kill_after_s:
            os.kill(child, signal.SIGKILL)
            break
        time.sleep(0.005)
    if not ended:
        status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), time.monotonic() - began


def campaign(folder, kills):
    """Kills and resumes runs; writes the number of kills and the runs' folders to FOLDER/campaign.json."""
    whole = folder / "whole"
    whole.mkdir()
    code, seconds = in_child(lambda: train(whole, 12))
    assert code == 0, code
    chance = random.Random(1)
    killed = 0
    runs = []
    while killed < kills:
        parts = folder / f"parts-{len(runs)}"
        parts.mkdir()
        for number in range(min(4, kills - killed)):
            code, took = in_child(lambda: train(parts, 12), kill_after_s=chance.uniform(0.1, 1.0) * seconds)
            killed += code == -signal.SIGKILL
            if code == 0:
                if number == 0:  # something held the first run up
                    seconds = min(seconds, took)
                break
        code, _ = in_child(lambda: train(parts, 12))
        assert code == 0, code
        runs.append(parts.name)
    (folder / "campaign.json").write_text(json.dumps({"killed": killed, "runs": runs}))


def main():
    if sys.argv[1] == "--campaign":
        campaign(pathlib.Path(sys.argv[2]), int(sys.argv[3]))
        return
    end = ("", 0, 0)
    stream = nearstep.Stream(slots=2, host_memory_gb=100) if "--from-storage" in sys.argv else None
    if len(sys.argv) > 3 and sys.argv[3].startswith("--end="):
        what, rank, step = sys.argv[3].removeprefix("--end=").split("@")
        end = (what, int(rank), int(step))
    train(pathlib.Path(sys.argv[1]), int(sys.argv[2]), end, stream)


main()
