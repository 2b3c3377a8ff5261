"""Trains a small GPT-2 in a loop of Accelerate, with micro-batches, on one rank or several, and resumes after a crash:

python examples/accelerate_loop.py FOLDER
nearstep-run --nproc-per-node 2 examples/accelerate_loop.py FOLDER
"""

import os
import sys

import nearstep
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

folder, STEPS, ROWS, PASSES = sys.argv[1], int(os.environ.get("STEPS", 40)), 8, 2


class Rows(torch.utils.data.Dataset):
    """Made-up text; replace it by yours."""

    def __len__(self):
        return 256

    def __getitem__(self, i):
        row = (torch.arange(32) + i * 7) % 64
        return {"input_ids": row, "labels": row}


torch.manual_seed(0)
accelerator = Accelerator(
    gradient_accumulation_steps=PASSES, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
)
model = GPT2LMHeadModel(
    GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=64,
        vocab_size=64,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
).to(accelerator.device)
opt = nearstep.AdamW(nearstep.groups(model, weight_decay=0.1), lr=1e-2, path=os.path.join(folder, "state"))
start = opt.resume()
scheduler = get_cosine_schedule_with_warmup(opt, 5, STEPS)
for _ in range(start):
    scheduler.step()
loader = torch.utils.data.DataLoader(
    Rows(),
    batch_size=ROWS // PASSES // accelerator.num_processes,
    shuffle=True,
    generator=torch.Generator().manual_seed(1),
)
model, optimizer, loader = accelerator.prepare(model, opt, loader)
first_epoch, done = divmod(start * PASSES, len(loader))  # an epoch has whole steps
step = start
for epoch in range(first_epoch, -(-STEPS * PASSES // len(loader))):
    loader.set_epoch(epoch)
    for batch in accelerator.skip_first_batches(loader, done if epoch == first_epoch else 0):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)  # becomes clip_norm
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            scheduler.step()
            step += 1
            accelerator.print(f"step {step} loss {accelerator.gather(loss.detach()).mean():.4f}", flush=True)
        if step == STEPS:
            break
print(f"rank {opt.rank} masters {opt.masters_digest():016x}")
