"""A rank forks before training begins and afterwards, and trains on. Prints how each child ended, and which notes of a
failed rank are in the launcher's folder.

    fork_ranks_worker.py FOLDER
"""

import gc
import os
import pathlib
import sys

import torch

import nearstep


def child(work):
    process = os.fork()
    if process == 0:
        work()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def drop():
    global opt
    del opt
    gc.collect()


def fail():
    raise ValueError("only the fork fails")


os.environ["HOME_PROCESS"] = str(os.getpid())
model = torch.nn.Linear(8, 8)
opt = nearstep.AdamW(model, lr=1e-3, path=pathlib.Path(sys.argv[1]) / "state")
codes = [child(work) for work in (lambda: None, drop, fail)]
opt.resume()
codes += [child(work) for work in (lambda: None, drop, fail)]
model(torch.ones(4, 8)).sum().backward()
codes += [child(work) for work in (lambda: None, drop, fail)]
opt.step()
opt.finish()
notes = [path.name for path in pathlib.Path(os.environ["PMIX_SERVER_TMPDIR"]).glob("nearstep-said-*")]
sys.stdout.write(f"codes {codes} notes {notes} step {opt.steps}\n")
opt.close()
