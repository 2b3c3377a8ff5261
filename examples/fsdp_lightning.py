"""Trains with Lightning where PyTorch starts the ranks: fully_shard() by ModelParallelStrategy, or DDP with --ddp. Kill
it at any time and start it again, also on other ranks: it goes on from the newest durable step.

    torchrun --nproc-per-node 2 examples/fsdp_lightning.py FOLDER [--ddp]
"""

import os
import sys

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

import nearstep

folder, STEPS, ROWS = sys.argv[1], int(os.environ.get("STEPS", 20)), 8
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rows = torch.randn(STEPS * ROWS, 64, generator=torch.Generator().manual_seed(1))  # made up; replace them by yours


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
        self.start = 0

    def configure_model(self):  # Lightning calls it before the optimizer is made, with a mesh for ModelParallelStrategy
        if self.device_mesh is not None:
            for part in (*self.layers, self.layers):
                if any(True for _ in part.parameters()):
                    fully_shard(part, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self):
        return nearstep.AdamW(nearstep.groups(self.layers, weight_decay=0.1), lr=1e-2, path=f"{folder}/state")

    def on_fit_start(self):
        self.start = self.optimizers(use_pl_optimizer=False).resume()

    def training_step(self, batch, _):
        return (self.layers(batch) - batch.sum(1, keepdim=True)).square().mean()

    def on_train_batch_end(self, outputs, *_):
        self.print(f"step {self.start + self.global_step} loss {outputs['loss']:.4f}", flush=True)

    def __iter__(self):  # the rank's rows of each step that is left
        return (range(step * ROWS + rank, (step + 1) * ROWS, ranks) for step in range(self.start, STEPS))

    def __len__(self):
        return STEPS - self.start


torch.manual_seed(0)
module = Network()
strategy = DDPStrategy() if "--ddp" in sys.argv else ModelParallelStrategy(ranks, 1)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
settings = {"max_epochs": 1, "gradient_clip_val": 1.0, "use_distributed_sampler": False}
trainer = lightning.Trainer(devices=ranks, strategy=strategy, **settings, **quiet)
trainer.fit(module, torch.utils.data.DataLoader(rows, batch_sampler=module))
print(f"rank {rank} masters {trainer.optimizers[0].masters_digest():016x}")
