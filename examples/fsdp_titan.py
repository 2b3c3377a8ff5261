"""A loop in the manner of torchtitan: a mesh of two dimensions (fully_shard() and tensor parallel), start on the meta
device, compiled blocks, torch.distributed.checkpoint. Kill it at any time and start it again, also on another mesh: it
goes on from the newest durable step; or from a checkpoint, also from one of torch.optim.AdamW.

    torchrun --nproc-per-node 4 examples/fsdp_titan.py FOLDER TENSOR_PARALLEL [CHECKPOINT]
"""

import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import nearstep

STEPS, ROWS, ranks = int(os.environ.get("STEPS", 20)), 8, int(os.environ["WORLD_SIZE"])
folder, tensor_parallel, *checkpoint = sys.argv[1], min(int(sys.argv[2]), ranks), *sys.argv[3:]
device = "cuda" if torch.cuda.is_available() else "cpu"
rows = (torch.randint(64, (256, 1), generator=torch.Generator().manual_seed(1)) + torch.arange(32)) % 64


class Block(torch.nn.Module):  # made up; replace it and the rows by yours
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = torch.nn.RMSNorm(64), torch.nn.Linear(64, 128), torch.nn.Linear(128, 64)

    def forward(self, x):
        return x + self.down(torch.nn.functional.silu(self.up(self.norm(x))))


mesh = init_device_mesh(device, (ranks // tensor_parallel, tensor_parallel), mesh_dim_names=("data", "tensor"))
with torch.device("meta"):
    model = torch.nn.Sequential(torch.nn.Embedding(64, 64), Block(), Block(), torch.nn.Linear(64, 64))
for block in model[1:3]:
    parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    block.compile(backend="inductor" if device == "cuda" else "eager")
    fully_shard(block, mesh=mesh["data"])
fully_shard(model, mesh=mesh["data"]).to_empty(device=device)
torch.manual_seed(0)
for p in model.parameters():
    torch.nn.init.normal_(p, std=0.1) if p.dim() > 1 else torch.nn.init.ones_(p)
opt = nearstep.AdamW(nearstep.groups(model, weight_decay=0.1), lr=1e-2, clip_norm=1.0, path=f"{folder}/state")
if checkpoint:
    weights, moments = get_state_dict(model, opt)
    dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=checkpoint[0])
    set_state_dict(model, opt, model_state_dict=weights, optim_state_dict=moments)
for step in range(opt.steps if checkpoint else opt.resume(), STEPS):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(step))[:ROWS]
    batch = rows[order[mesh.get_local_rank("data") :: mesh["data"].size()]].to(device)
    loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(f"rank {opt.rank} step {step + 1} loss {loss.item():.4f}", flush=True)
dcp.save(dict(zip(("model", "optimizer"), get_state_dict(model, opt))), checkpoint_id=f"{folder}/checkpoint-{STEPS}")
torch.distributed.destroy_process_group()
