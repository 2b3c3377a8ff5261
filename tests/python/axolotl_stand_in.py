"""A stand-in for `axolotl train` with the plugin of examples/: no code of axolotl, but what version 0.18 does with one.
Its names, arguments and order of calls are those of axolotl.integrations.base, axolotl.train and
axolotl.core.trainers.mixins.optimizer.

    axolotl_stand_in.py FOLDER
"""

import importlib
import os
import pathlib
import sys
import types

import torch
import transformers
from datasets import Dataset
from transformers.trainer_optimizer import is_optimizer_factory

folder, STEPS, ROWS = sys.argv[1], int(os.environ["STEPS"]), 8


class BasePlugin:
    def get_input_args(self):
        return None

    def create_optimizer(self, cfg, trainer):
        return None

    def post_trainer_create(self, cfg, trainer):
        pass

    def add_callbacks_post_trainer(self, cfg, trainer):
        return []


class AxolotlTrainer(transformers.Trainer):
    """A Trainer with OptimizerMixin.create_optimizer(), as it is for optimizer_cls_and_kwargs."""

    def create_optimizer(self, model=None):
        kind, named = self.optimizer_cls_and_kwargs
        if not self.optimizer and is_optimizer_factory(kind):
            self.optimizer = kind()(self.model if model is None else model, self.args, **named)
        return self.optimizer


for name in ("axolotl", "axolotl.integrations", "axolotl.integrations.base"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["axolotl.integrations.base"].BasePlugin = BasePlugin
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples"))
plugin = importlib.import_module("axolotl_plugin").NearstepPlugin()
place, _, kind = plugin.get_input_args().rpartition(".")
cfg = types.SimpleNamespace(nearstep={"path": f"{folder}/state"})
cfg = getattr(sys.modules[place], kind)(**vars(cfg))

torch.manual_seed(0)
shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=20, pad_token_id=0, **shape))
rows = [[(7 * row + i) % 20 for i in range(8)] for row in range(16)]
settings = transformers.TrainingArguments(
    output_dir=f"{folder}/trainer",
    max_steps=STEPS,
    learning_rate=1e-2,
    weight_decay=0.1,
    adam_epsilon=1e-3,
    per_device_train_batch_size=ROWS // int(os.environ["WORLD_SIZE"]),
    fsdp=True,
    fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
)
trainer = AxolotlTrainer(
    model, settings, train_dataset=Dataset.from_list([{"input_ids": row, "labels": row} for row in rows])
)
for callback in plugin.add_callbacks_post_trainer(cfg, trainer):
    trainer.add_callback(callback)
plugin.post_trainer_create(cfg, trainer)
trainer.train()
