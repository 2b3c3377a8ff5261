"""A user's script: train_script.py OUT PATH... trains a small network with the state in these paths.

OUT/steps-RANK gets a line per step, OUT/starts rank, ranks and step of each start, OUT/digest the masters' digest.
"""

import pathlib
import sys
import time

import torch

import nearstep

out, *paths = sys.argv[1:]
out = pathlib.Path(out)
out.mkdir(parents=True, exist_ok=True)
torch.manual_seed(7)
model = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(3)))
# Each rank's gradient is encoded by itself, also where ranks share a node.
opt = nearstep.AdamW(
    nearstep.groups(model, weight_decay=0.1),
    lr=1e-3,
    path=paths,
    clip_norm=1.0,
    config={"placement.gradients": "replicated"},
)
start = opt.resume()
(out / "starts").open("a").write(f"{opt.rank} {opt.ranks} {start}\n")
steps = (out / f"steps-{opt.rank}").open("a", buffering=1)
for step in range(start, 20):
    x = torch.randn(4, 300, generator=torch.Generator().manual_seed(2 * step + opt.rank))
    model(x).square().mean().backward()
    opt.step()
    opt.zero_grad()
    steps.write(f"{step}\n")
    time.sleep(0.1)
digest = opt.masters_digest()
if opt.rank == 0:
    (out / "digest").write_text(f"{digest:016x}")
