"""Trains a small transformer with fully_shard() and nearstep.AdamW: a mesh of one or two dimensions, compiled blocks,
start on the meta device. Kill it at any time and start it again, also on other ranks: it goes on from the newest
durable step.

    torchrun --nproc-per-node 2 examples/fsdp_loop.py FOLDER        fully_shard() over two ranks
    torchrun --nproc-per-node 4 examples/fsdp_loop.py FOLDER 2      two copies of the model, each over two ranks
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import nearstep

STEPS, ROWS, LENGTH, WIDTH = int(os.environ.get("STEPS", 20)), 8, 32, 64
folder, copies = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rows = (torch.randint(64, (256, 1), generator=torch.Generator().manual_seed(1)) + torch.arange(LENGTH)) % 64


def network():
    block = torch.nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    blocks = torch.nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
    return torch.nn.Sequential(torch.nn.Embedding(64, WIDTH), blocks, torch.nn.Linear(WIDTH, 64))


mesh = init_device_mesh(device, (copies, ranks // copies), mesh_dim_names=("copies", "shards"))
mesh = mesh if copies > 1 else mesh["shards"]
with torch.device("meta"):
    model = network()
for layer in model[1].layers:
    layer.compile(backend="inductor" if device == "cuda" else "eager")
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device=device)
torch.manual_seed(0)
start = network().state_dict() if rank == 0 else {}  # or a checkpoint's weights
set_model_state_dict(model, start, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
opt = nearstep.AdamW(nearstep.groups(model, weight_decay=0.1), lr=1e-2, path=os.path.join(folder, "state"))
for step in range(opt.resume(), STEPS):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(step))[:ROWS]
    batch = rows[order[rank::ranks]].to(device)
    loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    dist.all_reduce(loss.detach_().div_(ranks))
    if rank == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
print(f"rank {rank} masters {opt.masters_digest():016x}")
dist.destroy_process_group()
