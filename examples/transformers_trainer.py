"""Fine-tunes a model with transformers.Trainer and nearstep, and keeps the best one. Start it on one rank or several:

python examples/transformers_trainer.py FOLDER [--resume]
nearstep-run --nproc-per-node 2 examples/transformers_trainer.py FOLDER [--resume]
"""

import os
import sys

import nearstep
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
)

STEPS = int(os.environ.get("STEPS", 20))


class Rows(torch.utils.data.Dataset):
    """Made-up text; replace it by yours."""

    def __init__(self, first, count):
        self.first, self.count = first, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        row = (torch.arange(32) + (self.first + i) * 7) % 64
        return {"input_ids": row, "labels": row}


class Saves(TrainerCallback):
    """Saves nearstep's state before the Trainer saves, because the Trainer's checkpoint points to it."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def on_step_end(self, arguments, state, control, **_):
        if control.should_save:
            self.optimizer.save(os.path.join(arguments.output_dir, f"checkpoint-{state.global_step}", "nearstep"))


folder = sys.argv[1]
torch.manual_seed(0)
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
)
opt = nearstep.AdamW(nearstep.groups(model, weight_decay=0.1), lr=1e-2, path=os.path.join(folder, "state"))
arguments = TrainingArguments(
    output_dir=os.path.join(folder, "trainer"),
    max_steps=STEPS,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    save_steps=STEPS // 4,
    eval_strategy="steps",
    eval_steps=STEPS // 4,
    load_best_model_at_end=True,
    logging_steps=1,
    report_to="none",
    disable_tqdm=True,
)  # max_grad_norm, 1 by default, becomes clip_norm
trainer = Trainer(
    model,
    arguments,
    train_dataset=Rows(0, 512),
    eval_dataset=Rows(512, 16),
    optimizers=(opt, get_cosine_schedule_with_warmup(opt, 2, STEPS)),
    callbacks=[Saves(opt)],
)
trainer.train(resume_from_checkpoint="--resume" in sys.argv)
print(
    f"best {trainer.state.best_metric:.4f} now {trainer.evaluate()['eval_loss']:.4f} masters "
    f"{opt.masters_digest():016x}"
)
