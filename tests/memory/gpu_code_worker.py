"""Trains a small network on a GPU and prints the digest of its masters and what the GPU wrote of the state. The first
argument is the state's folder, and "gpu" as the second keeps the state there; else the host encodes and updates."""

import sys

import nearstep
import torch

STEPS = 20

torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(270, 270), torch.nn.Tanh()) for _ in range(3)))
model = model.to("cuda", torch.bfloat16)
config = {"csd.tiers.gpu": 1} if sys.argv[2] == "gpu" else {"csd.device": "host"}
settings = {"state": "compact", "codec": "q4", "clip_norm": 1e-3, "lr": 1e-2, "durability": "none"}
opt = nearstep.AdamW(model, path=sys.argv[1], fresh=True, config=config, **settings)
for number in range(STEPS):
    x = torch.randn(4, 270, generator=torch.Generator().manual_seed(number)).to("cuda", torch.bfloat16)
    (model(x) - 1).square().mean().backward()
    opt.step()
    opt.zero_grad()
opt.finish()
print(opt.stats()["bytes"], opt.masters_digest())
opt.close()
