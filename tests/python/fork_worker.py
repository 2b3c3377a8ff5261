"""Forks after training began, and prints how each child ended and what the parent's next steps give.

fork_worker.py FOLDER
"""

import concurrent.futures
import gc
import multiprocessing
import os
import pathlib
import signal
import sys
import time

import torch

import nearstep
import networks

LIMIT_S = 300


def child(work):
    """The code with which a fork ends that does this; "hangs" if it does not."""
    process = os.fork()
    if process == 0:
        try:
            work()
        except Exception as error:
            print(f"child: {type(error).__name__}: {error}", flush=True)
            sys.exit(7)
        sys.exit(0)
    limit = time.monotonic() + LIMIT_S
    while time.monotonic() < limit:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return "hangs"


folder = pathlib.Path(sys.argv[1])
model = networks.Layers(3, 200)
opt = nearstep.AdamW(model, lr=1e-3, path=folder / "state")
opt.resume()


def drop():
    global opt
    del opt
    gc.collect()


def begin_another():
    nearstep.AdamW(networks.Layers(2, 64), lr=1e-3, path=folder / "other").resume()


files = lambda: {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}
losses = [networks.descend(model.loss(0), opt)]
opt.finish()
before = files()
codes = [
    child(work) for work in (lambda: None, drop, lambda: networks.descend(model.loss(1), opt), opt.close, begin_another)
]
process = multiprocessing.get_context("fork").Process(target=gc.collect)
process.start()
process.join(LIMIT_S)
codes.append(process.exitcode)
loader = torch.utils.data.DataLoader(list(range(8)), num_workers=2, multiprocessing_context="fork")
codes.append(len(list(loader)))
with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
    codes.append(pool.submit(abs, -3).result(LIMIT_S))
print("codes", codes)
print("untouched", files() == before)
losses += [networks.descend(model.loss(number), opt) for number in (1, 2)]
loss = model.loss(3)  # while a step is on its way
print("codes", [child(lambda: None), child(drop)])
losses.append(networks.descend(model.loss(3), opt))
print("losses", losses)
opt.close()
