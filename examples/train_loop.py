"""Trains a small GPT-2 on made-up text with nearstep.AdamW, on one rank or several, and resumes after a crash.

    python examples/train_loop.py FOLDER                              one rank
    nearstep-run --nproc-per-node 2 examples/train_loop.py FOLDER     two ranks, whose gradients the engine averages

Kill it at any time and start it again with the same command: it continues from the newest durable step.
"""

import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, get_cosine_schedule_with_warmup

import nearstep

if len(sys.argv) != 2:
    sys.exit(__doc__)
STEPS, ROWS, LENGTH = int(os.environ.get("STEPS", 40)), 8, 32
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
rows = (torch.randint(64, (256, 1), generator=torch.Generator().manual_seed(1)) + torch.arange(LENGTH)) % 64


def batches(step):
    """Numbers of this rank's rows for all steps from this one on. They depend on the step alone, so that a resumed run
    needs no other position, and loads nothing of the steps done."""
    while step < STEPS:
        epoch, place = divmod(step * ROWS, len(rows))
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch))
        yield order[place : place + ROWS][rank::ranks].tolist()
        step += 1


torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=64, n_positions=LENGTH, bos_token_id=0, eos_token_id=0)
)
if torch.cuda.is_available():
    model.cuda(int(os.environ.get("LOCAL_RANK", 0)))
model.eval()  # no dropout, so that a step depends only on its data
opt = nearstep.AdamW(
    nearstep.groups(model, weight_decay=0.1), lr=1e-2, path=os.path.join(sys.argv[1], "state"), clip_norm=1.0
)
start = opt.resume()
scheduler = get_cosine_schedule_with_warmup(opt, 5, STEPS)
for _ in range(start):
    scheduler.step()
for step, batch in enumerate(torch.utils.data.DataLoader(rows, batch_sampler=batches(start)), start):
    batch = batch.to(model.device)
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    opt.step()
    scheduler.step()
    opt.zero_grad()
    if rank == 0:
        print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    if step + 1 == STEPS // 2:
        # A checkpoint is kept until the next one. opt.resume(checkpoint=...) returns to it and sets opt.extra to
        # what was saved.
        opt.save(extra={"files_read": [f"part-{step // 10}"], "rows_read": (step + 1) * ROWS})
print(f"rank {rank} masters {opt.masters_digest():016x}")
