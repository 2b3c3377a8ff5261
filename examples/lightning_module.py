"""Trains with Lightning and nearstep, on one rank or several, and resumes from Lightning's newest checkpoint:
nearstep-run [--nproc-per-node 2] examples/lightning_module.py FOLDER [--manual]"""

import os
import sys

import lightning
import nearstep
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

folder, STEPS, ROWS, PASSES = sys.argv[1], int(os.environ.get("STEPS", 40)), 8, 2
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
rows = torch.randn(128, 64, generator=torch.Generator().manual_seed(1))  # made up; replace them by yours


class Network(lightning.LightningModule):
    def __init__(self, is_manual):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
        self.automatic_optimization = not is_manual

    def configure_optimizers(self):
        opt = nearstep.AdamW(nearstep.groups(self.layers), lr=1e-2, path=os.path.join(folder, "state"))
        return [opt], [{"scheduler": torch.optim.lr_scheduler.StepLR(opt, 20), "interval": "step"}]

    def training_step(self, batch, number):
        loss = (self.layers(batch) - batch.sum(1, keepdim=True)).square().mean()
        if not self.automatic_optimization:
            opt = self.optimizers()
            self.manual_backward(loss / PASSES)
            if (number + 1) % PASSES == 0:
                self.clip_gradients(opt, gradient_clip_val=1.0)  # becomes clip_norm
                opt.step()
                opt.zero_grad()
                self.lr_schedulers().step()
        return loss

    def on_train_batch_end(self, outputs, batch, _):
        self.print(f"step {self.global_step} loss {outputs['loss']:.4f}", flush=True)

    def on_save_checkpoint(self, checkpoint):  # Lightning's checkpoint points to nearstep's
        self.optimizers(use_pl_optimizer=False).save(os.path.join(folder, f"nearstep-{self.global_step}"))

    def __iter__(self):
        """Yields this rank's rows of each batch, from the step on that comes next: Lightning leaves out nothing when it
        resumes."""
        for first in range(self.global_step * ROWS % len(rows), len(rows), ROWS // PASSES):
            yield range(first + rank, first + ROWS // PASSES, ranks)

    def __len__(self):
        return len(rows) // (ROWS // PASSES)


torch.manual_seed(0)
module = Network(is_manual="--manual" in sys.argv)
automatic = {"accumulate_grad_batches": PASSES, "gradient_clip_val": 1.0} if module.automatic_optimization else {}
checkpoints = ModelCheckpoint(os.path.join(folder, "lightning"), every_n_train_steps=10, save_last="link")
trainer = lightning.Trainer(
    max_steps=STEPS,
    devices=ranks,
    strategy="ddp" if ranks > 1 else "auto",
    use_distributed_sampler=False,
    callbacks=[checkpoints],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    **automatic,
)
trainer.fit(
    module,
    torch.utils.data.DataLoader(rows, batch_sampler=module),
    ckpt_path="last" if os.path.exists(checkpoints.dirpath) else None,
)
print(f"rank {rank} learned {module.layers.requires_grad_(False)(torch.eye(64)).mean():.5f}")
