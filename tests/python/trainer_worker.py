"""Trains a small GPT-2 by transformers.Trainer on 8 rows a step, on all ranks together; prints the losses and the rows.

trainer_worker.py FOLDER ACCUMULATION
"""

import os
import pathlib
import sys

import torch
import transformers

import nearstep
import networks
from nearstep.trainer import LogStats

folder, accumulation = pathlib.Path(sys.argv[1]), int(sys.argv[2])


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        row = torch.randint(0, networks.VOCABULARY, (networks.LENGTH,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": row, "labels": row}


model = networks.make("gpt2")
optimizer = nearstep.AdamW(
    nearstep.groups(model), lr=1e-3, path=folder / "state", keep_gradients=True
)  # the Trainer asks for their norm
arguments = transformers.TrainingArguments(
    output_dir=str(folder / "out"),
    max_steps=5,
    per_device_train_batch_size=8 // accumulation // int(os.environ.get("WORLD_SIZE", 1)),
    gradient_accumulation_steps=accumulation,
    max_grad_norm=0,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
    save_strategy="no",
    logging_steps=1,
    lr_scheduler_type="constant",
)
trainer = transformers.Trainer(model, arguments, train_dataset=Rows(), optimizers=(optimizer, None))
trainer.add_callback(LogStats(trainer))
trainer.train()
if optimizer.rank == 0:
    print("losses", [step["loss"] for step in trainer.state.log_history if "loss" in step])
    print("logged", *sorted({name for line in trainer.state.log_history for name in line if "/" in name}))
    print("sums", getattr(trainer.model_wrapped, "require_backward_grad_sync", None))
optimizer.close()
