"""Trains with Transformers' Trainer, or TRL's SFTTrainer or GRPOTrainer, where PyTorch starts the ranks: FSDP2, or DDP
with --ddp. Kill it at any time and start it again, also on other ranks: it goes on from the newest durable step.

    torchrun --nproc-per-node 2 examples/fsdp_trainer.py FOLDER Trainer|SFTTrainer|GRPOTrainer [--ddp]
"""

import os
import sys

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

import nearstep

folder, kind, STEPS, ROWS = *sys.argv[1:3], int(os.environ.get("STEPS", 20)), 8
tokens = Tokenizer(models.WordLevel({str(number): number for number in range(20)}, unk_token="0"))
tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="0", eos_token="19")
numbers = [[(7 * row + i) % 20 for i in range(8)] for row in range(16)]  # made-up text; replace it by yours
rows = [{"input_ids": row, "labels": row, "prompt": " ".join(map(str, row))} for row in numbers]


class GoesOn(transformers.TrainerCallback):
    def on_train_begin(self, arguments, state, control, optimizer, lr_scheduler, train_dataloader, **_):
        state.global_step = optimizer.optimizer.resume()  # Accelerate's optimizer has nearstep's
        for _ in range(state.global_step):
            lr_scheduler.step()
        passes = arguments.gradient_accumulation_steps
        self.epoch, steps = divmod(state.global_step, -(-len(train_dataloader) // passes))
        train_dataloader.skip_batches, set_epoch = steps * passes, train_dataloader.set_epoch
        train_dataloader.set_epoch = lambda _: set_epoch(self.epoch)  # the Trainer counts the epochs of this start
        train_dataloader.base_dataloader.generator = torch.Generator()  # iterators draw from it, not from PyTorch's

    def on_epoch_end(self, *_, train_dataloader, **__):
        train_dataloader.skip_batches, self.epoch = 0, self.epoch + 1


def make_optimizer(model):  # the Trainer calls it, and then Accelerate calls fully_shard()
    return nearstep.AdamW(nearstep.groups(model, weight_decay=0.1), lr=1e-2, path=f"{folder}/state", keep_random=True)


torch.manual_seed(0)
shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=20, pad_token_id=0, eos_token_id=19, **shape))
own = {"num_generations": 4, "max_completion_length": 4} if kind == "GRPOTrainer" else {"max_grad_norm": 1.0}
fsdp = {"fsdp": "--ddp" not in sys.argv, "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
quiet = {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "bf16": False}
size = {"max_steps": STEPS, "per_device_train_batch_size": ROWS // int(os.environ["WORLD_SIZE"])}
settings = {"Trainer": transformers.TrainingArguments, "SFTTrainer": trl.SFTConfig, "GRPOTrainer": trl.GRPOConfig}[kind]
settings = settings(output_dir=os.path.join(folder, "trainer"), **size, **own, **fsdp, **quiet)
data = {"train_dataset": Dataset.from_list(rows), "processing_class": tokenizer, "callbacks": [GoesOn()]}
if kind == "GRPOTrainer":  # distinct words are good
    data["reward_funcs"] = lambda completions, **_: [float(len(set(text.split()))) for text in completions]
trainer = getattr(transformers if kind == "Trainer" else trl, kind)(model, args=settings, **data)
trainer.optimizer_cls_and_kwargs = (lambda: make_optimizer, {})  # optimizers= is refused under FSDP2
trainer.train()
print(f"step {trainer.optimizer.optimizer.steps} masters {trainer.optimizer.optimizer.masters_digest():016x}")
