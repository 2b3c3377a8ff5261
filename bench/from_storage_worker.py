"""One row of bench/from_storage, of the job that it gets as JSON: trains a Llama for some steps and prints a line of
JSON.
"""

import json
import os
import pathlib
import statistics
import sys
import threading
import time
import types

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same bits every time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import gpu_runs
import nearstep

job = types.SimpleNamespace(**json.loads(sys.argv[1]))
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


class HostMemory:
    """Measures the host memory that this process takes, without the page cache."""

    def __init__(self):
        self.most_bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while True:
            sizes = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
            self.most_bytes = max(
                self.most_bytes, 1024 * sum(int(sizes[name].split()[0]) for name in ("RssAnon", "RssShmem"))
            )
            time.sleep(0.05)


def make_model():
    with nearstep.empty(DEVICE):
        return LlamaForCausalLM._from_config(
            LlamaConfig(**job.shape, use_cache=False, attention_dropout=0.0), dtype=torch.bfloat16
        ).train()


def main():
    torch.use_deterministic_algorithms(job.is_exact)
    model = make_model()
    host = HostMemory()
    stream = nearstep.Stream(**job.stream) if job.stream else None
    opt = nearstep.AdamW(
        nearstep.groups(model, weight_decay=0.1),
        lr=1e-5,
        path=job.folder,
        state="compact",
        codec="q4",
        devices=1,
        durability="none",
        clip_norm=1.0,
        accumulation=1,
        stream=stream,
        weights=job.weights,
        config={"csd.slots": 4},
    )
    began = time.perf_counter()
    opt.resume()
    start_s = time.perf_counter() - began
    generator = torch.Generator().manual_seed(2)
    phases, losses, moved = [], [], []
    for _ in range(job.steps):
        tokens = torch.randint(job.shape["vocab_size"], (job.rows_of_step, job.length), generator=generator).to(DEVICE)
        wait()
        times = [time.perf_counter()]
        loss = model(input_ids=tokens, labels=tokens).loss
        wait()
        times.append(time.perf_counter())
        loss.backward()
        wait()
        times.append(time.perf_counter())
        moved.append(gpu_runs.drive_bytes())
        stats = opt.stats()  # of the step before, whose update ended in this one's forward
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
        times.append(time.perf_counter())
        phases.append([later - earlier for earlier, later in zip(times, times[1:])])
    opt.finish()
    phases = phases[1:] or phases
    forward_s, backward_s, step_s = (statistics.mean(phase) for phase in zip(*phases))
    read, written = ((last - first) / (len(moved) - 1) for first, last in zip(moved[0], moved[-1]))
    line = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "losses": losses,
        "tokens_per_s": job.rows_of_step * job.length / (forward_s + backward_s + step_s),
        "forward_s": forward_s,
        "backward_s": backward_s,
        "step_s": step_s,
        "update_s": stats["update_s"],
        "waited_s": stats["waited_s"],
        "start_s": start_s,
        "drive_read_bytes": read,
        "drive_written_bytes": written,
        "read_s": stats.get("read_s"),
        "awaited_s": stats.get("awaited_s"),
        "bytes": stats["bytes"],
        "host_gb": host.most_bytes / 1e9,
        "digest": f"{opt.masters_digest():016x}",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
    }
    if DEVICE.type == "cuda":
        line["gpu_gb"] = torch.cuda.max_memory_allocated() / 1e9
    print(json.dumps(line), flush=True)


main()
