"""Fine-tunes a model with transformers.Trainer and nearstep: python examples/transformers_trainer.py FOLDER [--resume]"""
import os
import sys

import torch
from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments,
                          get_cosine_schedule_with_warmup)

import nearstep

STEPS = int(os.environ.get("STEPS", 20))


class Rows(torch.utils.data.Dataset):
    """Made-up text; replace it by yours."""

    def __len__(self):
        return 512

    def __getitem__(self, i):
        row = (torch.arange(32) + i * 7) % 64
        return {"input_ids": row, "labels": row}


class Saves(TrainerCallback):
    """Saves nearstep's state before the Trainer saves, because the Trainer's checkpoint points to it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def on_step_end(self, arguments, state, control, **_):
        if control.should_save:
            self.optimizer.save(os.path.join(arguments.output_dir, f"checkpoint-{state.global_step}", "nearstep"))


if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    sys.exit("The Trainer gives every rank the same rows: run it on one rank, or write the loop as in train_loop.py.")
folder = sys.argv[1]
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=64, n_positions=32, bos_token_id=0, eos_token_id=0,
                                   resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
opt = nearstep.AdamW(nearstep.groups(model, weight_decay=0.1), lr=1e-2, path=os.path.join(folder, "state"), clip_norm=1.0)
arguments = TrainingArguments(
    output_dir=os.path.join(folder, "trainer"), max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=2,
    save_steps=STEPS // 2, logging_steps=1, report_to="none", disable_tqdm=True,
    max_grad_norm=0)  # nearstep clips: clip_norm above
trainer = Trainer(model, arguments, train_dataset=Rows(), optimizers=(opt, get_cosine_schedule_with_warmup(opt, 2, STEPS)),
                  callbacks=[Saves(opt)])
trainer.train(resume_from_checkpoint="--resume" in sys.argv)
print(f"masters {opt.masters_digest():016x}")
