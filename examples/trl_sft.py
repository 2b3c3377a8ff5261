"""Tunes LoRA adapters on instructions with TRL's SFTTrainer and nearstep. Start it on one rank or several:

    python examples/trl_sft.py FOLDER
    nearstep-run --nproc-per-node 2 examples/trl_sft.py FOLDER

Kill it at any time and start it again: it goes on from the newest durable step, and leaves out the rows of steps done.
"""

import os
import sys

import nearstep
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, get_cosine_schedule_with_warmup
from trl import SFTConfig, SFTTrainer

folder, STEPS, ROWS = sys.argv[1], int(os.environ.get("STEPS", 40)), 8
ranks = int(os.environ.get("WORLD_SIZE", 1))


def made_up():
    """A tiny model, its tokenizer, and instructions to add; replace them by yours."""
    words = ["<pad>", "<end>", "user:", "assistant:", "add", "and", *map(str, range(20))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            bos_token_id=None,
            eos_token_id=1,
            pad_token_id=0,
        )
    )
    rows = [
        {"prompt": f"user: add {a} and {b} ", "completion": f"assistant: {a + b} <end>"}
        for a in range(10)
        for b in range(10)
    ]
    return model, tokenizer, Dataset.from_list(rows * 4)


torch.manual_seed(0)
model, tokenizer, rows = made_up()
model = get_peft_model(
    model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", modules_to_save=["embed_tokens", "lm_head"])
)
opt = nearstep.AdamW(
    nearstep.groups(model), lr=1e-2, path=os.path.join(folder, "state")
)  # only the adapters have state
start = opt.resume()
scheduler = get_cosine_schedule_with_warmup(opt, 4, STEPS)
for _ in range(start):
    scheduler.step()
arguments = SFTConfig(
    output_dir=os.path.join(folder, "trainer"),
    max_steps=STEPS - start,
    per_device_train_batch_size=ROWS // ranks,
    bf16=False,
    train_sampling_strategy="sequential",
    save_strategy="no",
    logging_steps=1,
    report_to="none",
    disable_tqdm=True,
    max_grad_norm=1.0,
)  # becomes clip_norm
rows = rows.shuffle(seed=1).skip(start * ROWS)
trainer = SFTTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer, optimizers=(opt, scheduler))
trainer.train()
if opt.rank == 0:
    model.save_pretrained(os.path.join(folder, "adapter"))
print(f"rank {opt.rank} step {opt.steps} masters {opt.masters_digest():016x}")
