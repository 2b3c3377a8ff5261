"""Rank 1 ends its program while rank 0 goes on.

    ending_worker.py FOLDER WHAT

WHAT: second (rank 0 begins with another optimizer), never (rank 1 ends before it began).
"""

import os
import pathlib
import sys

import nearstep
import networks

folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]
model = networks.Layers(2, 64)
opt = nearstep.AdamW(model, lr=1e-3, path=folder / "state", config={"checkpoint.path": str(folder / "checkpoints")})
if what == "never" and os.environ["RANK"] == "1":
    sys.exit(0)
opt.resume()
model.loss(0, opt.rank, opt.ranks).backward()
opt.step()
if opt.rank == 1:
    sys.exit(0)
nearstep.AdamW(networks.Layers(2, 64), lr=1e-3, path=folder / "second").resume()
