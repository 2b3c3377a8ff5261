"""Trains in a loop of Accelerate with its FSDP2 plugin, over micro-batches. Kill it at any time and start it again,
also on other ranks: it goes on from the newest durable step.

    torchrun --nproc-per-node 2 examples/fsdp_accelerate.py FOLDER        or: accelerate launch
"""

import os
import sys

import torch
from accelerate import Accelerator, DataLoaderConfiguration, FullyShardedDataParallelPlugin
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

import nearstep

folder, STEPS, ROWS, PASSES = sys.argv[1], int(os.environ.get("STEPS", 20)), 8, 2
numbers = (torch.arange(256)[:, None] * 7 + torch.arange(32)) % 64  # made-up text; replace it by yours
rows = [{"input_ids": row, "labels": row} for row in numbers]

torch.manual_seed(0)
accelerator = Accelerator(
    gradient_accumulation_steps=PASSES,
    dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True),
    fsdp_plugin=FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["GPT2Block"],
        cpu_ram_efficient_loading=True,  # rank 0 has the weights, the others an empty model
    ),
)
shape = {"n_layer": 2, "n_head": 2, "n_embd": 64, "vocab_size": 64, "n_positions": 32}
start = {"bos_token_id": 0, "eos_token_id": 0, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
model = GPT2LMHeadModel(GPT2Config(**shape, **start))
opt = nearstep.AdamW(nearstep.groups(model, weight_decay=0.1), lr=1e-2, path=os.path.join(folder, "state"))
loader = torch.utils.data.DataLoader(rows, batch_size=ROWS // PASSES // accelerator.num_processes, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, opt, loader)  # gives the optimizer the divided parameters
step = opt.resume()
scheduler = get_cosine_schedule_with_warmup(opt, 5, STEPS)
for _ in range(step):
    scheduler.step()
while step < STEPS:
    epoch, done = divmod(step * PASSES, len(loader))  # an epoch has whole steps
    loader.set_epoch(epoch)
    for batch in accelerator.skip_first_batches(loader, done):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            scheduler.step()
            step += 1
            accelerator.print(f"step {step} loss {accelerator.gather(loss.detach()).mean():.4f}", flush=True)
        if step == STEPS:
            break
print(f"rank {opt.rank} masters {opt.masters_digest():016x}")
