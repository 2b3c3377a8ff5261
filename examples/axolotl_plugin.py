"""nearstep as axolotl's optimizer, under FSDP2 or DDP. Put this file where Python finds it, and in axolotl's YAML:

    plugins: [axolotl_plugin.NearstepPlugin]
    nearstep: {path: /nvme0/run, state: bf16}        keyword arguments of nearstep.AdamW

`axolotl train config.yaml` starts the ranks. After a kill the same command goes on from the newest durable step.
"""

import torch
from axolotl.integrations.base import BasePlugin
from pydantic import BaseModel
from transformers import TrainerCallback

import nearstep


class NearstepArgs(BaseModel):
    nearstep: dict | None = None


class GoesOn(TrainerCallback):
    epoch = 0

    def on_train_begin(self, arguments, state, control, optimizer, lr_scheduler, train_dataloader, **_):
        opt = optimizer.optimizer  # Accelerate's has nearstep's
        if opt.has_begun:  # from a checkpoint of the Trainer
            return
        state.global_step = opt.resume()
        for _ in range(state.global_step):
            lr_scheduler.step()
        passes = arguments.gradient_accumulation_steps
        self.epoch, steps = divmod(state.global_step, -(-len(train_dataloader) // passes))
        train_dataloader.skip_batches, set_epoch = steps * passes, train_dataloader.set_epoch
        train_dataloader.set_epoch = lambda _: set_epoch(self.epoch)  # the Trainer counts the epochs of this start
        train_dataloader.base_dataloader.generator = torch.Generator()  # iterators draw from it, not from PyTorch's

    def on_epoch_end(self, *_, train_dataloader, **__):
        train_dataloader.skip_batches, self.epoch = 0, self.epoch + 1


class NearstepPlugin(BasePlugin):
    def get_input_args(self):
        return f"{__name__}.NearstepArgs"

    def create_optimizer(self, cfg, trainer):
        given = trainer.args
        return nearstep.AdamW(
            nearstep.groups(trainer.model, weight_decay=given.weight_decay),
            lr=given.learning_rate,
            betas=(given.adam_beta1, given.adam_beta2),
            eps=given.adam_epsilon,
            **(cfg.nearstep or {}),
        )

    def post_trainer_create(self, cfg, trainer):  # axolotl 0.18 calls no plugin's create_optimizer() by itself
        factory = lambda: lambda *_, **__: self.create_optimizer(cfg, trainer)  # noqa: E731
        trainer.optimizer_cls_and_kwargs = (factory, {})

    def add_callbacks_post_trainer(self, cfg, trainer):
        return [GoesOn()]
