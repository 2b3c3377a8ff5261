"""The systems that bench/end_to_end compares: each gives a model its optimizer and performs steps. Used by
end_to_end_worker.py. A job is what bench/end_to_end sends that program, with one attribute for each key.
"""

import os

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BETAS, DECAY = (0.9, 0.95), 0.1


class Memory:
    """PyTorch's own fused AdamW, with parameters and moments on the device in the model's bf16: the fastest choice."""

    def __init__(self, model, job):
        self.model, self.job = model, job
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=job.rate, betas=BETAS, weight_decay=DECAY, fused=DEVICE.type == "cuda"
        )

    def begin(self):
        """Returns the number of steps that are done already."""
        return 0

    def durable(self):
        """Returns the newest step that survives a crash."""
        return 0

    def backward(self, loss):
        (loss / self.job.accumulation).backward()

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.job.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def statistics(self):
        """Returns what the optimizer reports of its steps, for the row's line."""
        return {}


def near_adamw(model, job, **settings):
    """nearstep.AdamW with the job's options, whose paths, formats and streams are words, and with ``settings``."""
    import nearstep

    options = {"clip_norm": job.clip_norm, "devices": job.devices, **job.options}
    if "log" in options:
        options["log"] = os.path.join(job.folder, options["log"])
    if "accumulation_dtype" in options:
        options["accumulation_dtype"] = getattr(torch, options["accumulation_dtype"])
    if "stream" in options:
        options["stream"] = nearstep.Stream(**options["stream"])
    return nearstep.AdamW(model, lr=job.rate, betas=BETAS, weight_decay=DECAY, path=job.folder, **options, **settings)


class Near(Memory):
    """nearstep.AdamW, with the state in the job's folder."""

    def __init__(self, model, job):
        self.job = job
        self.optimizer = near_adamw(
            model, job, accumulation=job.accumulation, fresh=job.log is None, weights=job.weights
        )

    def begin(self):
        return self.optimizer.resume() if self.job.log else 0

    def durable(self):
        return self.optimizer.durable_step

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()

    def statistics(self):
        self.optimizer.finish()
        return {"stats": self.optimizer.stats(), "start": self.optimizer._session.start_seconds}


class TorchaoOffload(Memory):
    """torchao's CPUOffloadOptimizer: PyTorch's fused AdamW on the CPU in the model's bf16. It cannot clip."""

    def __init__(self, model, job):
        from torchao.optim import CPUOffloadOptimizer

        self.model, self.job = model, job
        self.optimizer = CPUOffloadOptimizer(
            model.parameters(), torch.optim.AdamW, lr=job.rate, betas=BETAS, weight_decay=DECAY, fused=True
        )

    def step(self):
        self.optimizer.step()
        self.optimizer.zero_grad()


class Several(Memory):
    """FSDP2 or DDP: with nearstep.AdamW, or with PyTorch's fused AdamW on the GPUs, or with that on the host by
    FSDP2's CPUOffloadPolicy."""

    def __init__(self, model, job):
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

        self.job = job
        alone = {"rank": 0, "world_size": 1, "store": torch.distributed.HashStore()} if job.gpus == 1 else {}
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo", **alone)
        way, optimizer = job.row.split("-")[:2]
        self.is_near, self.is_ddp = optimizer == "nearstep", way == "ddp"
        offload = CPUOffloadPolicy(pin_memory=DEVICE.type == "cuda")
        settings = {
            "mesh": torch.distributed.init_device_mesh(DEVICE.type, (job.gpus,)),
            "offload_policy": offload if optimizer == "offload" else OffloadPolicy(),
        }
        if self.is_ddp:
            self.engine = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            for block in model.model.layers:
                fully_shard(block, **settings)
            self.engine = fully_shard(model, **settings)
        self.model, self.passes = self.engine, 0
        self._reduce_in_last_pass()
        if self.is_near:
            self.optimizer = near_adamw(model, job, fresh=True)
        else:
            self.optimizer = torch.optim.AdamW(
                model.parameters(), lr=job.rate, betas=BETAS, weight_decay=DECAY, fused=True
            )

    def _reduce_in_last_pass(self):
        """Comes before the next forward: the ranks reduce gradients in the last pass of a step alone."""
        reduces = (self.passes + 1) % self.job.accumulation == 0
        if self.is_ddp:
            self.engine.require_backward_grad_sync = reduces
        else:
            self.engine.set_requires_gradient_sync(reduces)

    def backward(self, loss):
        super().backward(loss)
        self.passes += 1
        self._reduce_in_last_pass()

    def step(self):
        if self.is_near:
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            super().step()

    def statistics(self):
        if not self.is_near:
            return {}
        self.optimizer.finish()
        return {"stats": self.optimizer.stats()}


class DeepSpeed(Memory):
    """DeepSpeed with the optimizer offloaded; the row's options are its own settings."""

    def __init__(self, model, job):
        self.job = job
        for name, value in (
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("LOCAL_RANK", "0"),
            ("MASTER_ADDR", "localhost"),
            ("MASTER_PORT", "0"),
        ):  # 0: any free port
            os.environ.setdefault(name, value)
        import deepspeed

        zero = dict(job.options)
        bf16 = {"enabled": True, **zero.pop("bf16", {})}
        if zero["offload_optimizer"]["device"] == "nvme":
            zero["offload_optimizer"]["nvme_path"] = job.folder
        if "zenflow" in zero:  # it counts in micro-batches
            zero["zenflow"] |= {"select_interval": job.accumulation, "update_interval": job.accumulation}
        if zero["stage"] == 3:
            # A block's parameters are fetched together, and its compiled forward has no hooks inside.
            blocks = model.model.layers if "inner" in job.shape else model.transformer.h
            deepspeed.utils.set_z3_leaf_modules(model, [type(blocks[0])])
        self.coalesces, self.coalescing = zero.pop("coalesces", False), None
        rows = job.micro_batch * (1 if self.coalesces else job.accumulation)
        settings = {
            "train_batch_size": rows,
            "train_micro_batch_size_per_gpu": job.micro_batch,
            "gradient_clipping": job.clip_norm,
            "bf16": bf16,
            "zero_optimization": zero,
            "aio": {
                "block_size": 8 << 20,
                "queue_depth": 32,
                "thread_count": 4,
                "single_submit": False,
                "overlap_events": True,
            },
            "optimizer": {"type": "AdamW", "params": {"lr": job.rate, "betas": list(BETAS), "weight_decay": DECAY}},
        }
        self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)

    def backward(self, loss):
        if self.coalesces and self.coalescing is None:
            self.coalescing = self.engine.coalesce_grad_reduction()
            self.coalescing.__enter__()
        self.engine.backward(loss / self.job.accumulation if self.coalesces else loss)
        if not self.coalesces:
            self.engine.step()

    def step(self):
        if self.coalesces:
            self.coalescing.__exit__(None, None, None)
            self.coalescing = None
            self.engine.step()

    def statistics(self):
        return {}


def make_trainer(model, job):
    kinds = {
        "deepspeed": DeepSpeed,
        "nearstep": Near,
        "fsdp2": Several,
        "ddp": Several,
        "torchao": TorchaoOffload,
        "memory": Memory,
    }
    return kinds[job.row.split("-")[0]](model, job)
