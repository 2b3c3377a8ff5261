"""Trains a network on all ranks but the last SERVING, which hold the devices; rank 0 prints what they end with.

serve_worker.py FOLDER SERVING STEPS [codec=CODEC] [resume] [save] [changes] [shared] [unfit] [kill=STEP]

In step STEP rank 0 kills the last rank.
"""

import os
import pathlib
import signal
import sys

import torch

import nearstep
import networks

folder, serving, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
wanted = dict(word.partition("=")[::2] for word in sys.argv[4:])
rank, ranks = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)), int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))

if rank >= ranks - serving:
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    nearstep.serve(
        None if "shared" in wanted else folder / f"drive-{rank}",
        config={"csd": {"slots": -1 if "unfit" in wanted else 4}},
    )
    sys.exit()


model = networks.Layers(width=512)
optimizer = nearstep.AdamW(model, lr=1e-3, path=folder / "state", codec=wanted.get("codec"), clip_norm=1.0)
if "resume" in wanted:
    optimizer.resume()
for step in range(optimizer.steps, steps):
    if rank == 0 and step == int(wanted.get("kill", -1)):
        os.kill(int((folder / f"pid-{ranks - 1}").read_text()), signal.SIGKILL)
    networks.descend(model.loss(step, optimizer.rank, optimizer.ranks), optimizer)
    if "changes" in wanted and step == 1:
        with torch.no_grad():
            next(model.parameters()).mul_(0.5)
if "save" in wanted:
    optimizer.save()
digest, total = optimizer.masters_digest(), sum(p.double().sum().item() for p in model.parameters())
if rank == 0:
    print("masters", optimizer.ranks, digest, total)
