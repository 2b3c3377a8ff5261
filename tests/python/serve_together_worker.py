"""Two optimizers on all ranks but the last SERVING, which hold the devices; the first model's start values are in
files. A step is given up on the way. Rank 0 prints what both end with.

    serve_together_worker.py FOLDER SERVING STEPS
"""

import os
import pathlib
import sys

import safetensors.torch

import nearstep
import networks

folder, serving, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rank, ranks = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0)), int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1))

if rank >= ranks - serving:
    nearstep.serve(folder / f"drive-{rank}")
    sys.exit()

weights = folder / f"weights-{rank}"
weights.mkdir()
values = networks.Layers(width=512).state_dict()
safetensors.torch.save_file({name: 0.7 * value for name, value in values.items()}, weights / "model.safetensors")
with nearstep.empty():
    first = networks.Layers(width=512)
second = networks.Layers(count=2, width=300)
optimizers = [
    nearstep.AdamW(first, lr=1e-3, path=folder / "first", weights=weights),
    nearstep.SGD(second, lr=1e-2, momentum=0.9, path=folder / "second"),
]
for step in range(steps):
    for model, optimizer in zip((first, second), optimizers):
        for attempt in range(2 if step == 2 else 1):
            optimizer.zero_grad()
            model.loss(step + 10 * attempt, optimizer.rank, optimizer.ranks).backward()
        optimizer.step()
for optimizer in optimizers:
    optimizer.zero_grad()
digests = [optimizer.masters_digest() for optimizer in optimizers]
if rank == 0:
    print("masters", *digests, *(optimizer.steps for optimizer in optimizers))
