"""Trains a small Llama whose products are in float8 by torchao, with nearstep.AdamW. Weights, gradients and the state
are as without float8. It needs torchao, and for speed a GPU that multiplies float8 (H100 or newer); elsewhere float8 is
emulated.

    python examples/float8.py FOLDER                              one rank
    nearstep-run --nproc-per-node 2 examples/float8.py FOLDER     two ranks

Kill it at any time and start it again with the same command: it continues from the newest durable step.
"""

import os
import sys

import torch
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from transformers import LlamaConfig, LlamaForCausalLM

import nearstep

if len(sys.argv) != 2:
    sys.exit(__doc__)
STEPS, ROWS, LENGTH = int(os.environ.get("STEPS", 20)), 8, 33
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else "cpu"
has_float8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)
rows = (torch.randint(64, (256, 1), generator=torch.Generator().manual_seed(1)) + torch.arange(LENGTH)) % 64

torch.manual_seed(0)
shape = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64, "intermediate_size": 128}
model = LlamaForCausalLM(LlamaConfig(**shape, vocab_size=64)).to(device, torch.bfloat16)
# The layers alone: the head's products stay in bf16. Sides of matrices must be multiples of 16. Leave
# enable_fsdp_float8_all_gather off, with which weights would be no plain tensors.
convert_to_float8_training(model.model.layers, config=Float8LinearConfig(emulate=not has_float8))
for layer in model.model.layers:  # compiled, the conversions to float8 cost little
    layer.compile(backend="inductor" if has_float8 else "eager")
opt = nearstep.AdamW(
    nearstep.groups(model, weight_decay=0.1), lr=1e-2, path=os.path.join(sys.argv[1], "state"), clip_norm=1.0
)
for step in range(opt.resume(), STEPS):
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(step))[:ROWS]
    batch = rows[order[rank::ranks]].to(device)
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    opt.step()
    opt.zero_grad()
    if rank == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
print(f"rank {rank} masters {opt.masters_digest():016x}")
