"""One row of bench/torch_stream or bench/from_storage: trains a Llama for some steps and prints a line of JSON."""
import argparse
import json
import os
import pathlib
import statistics
import threading
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same bits every time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import nearstep

arguments = argparse.ArgumentParser()
arguments.add_argument("--row", required=True)
arguments.add_argument("--shape", type=json.loads, required=True, help="of LlamaConfig")
arguments.add_argument("--stream", type=json.loads, required=True, help="of nearstep.Stream; null: all on the GPU")
arguments.add_argument("--rows-of-step", type=int, required=True)
arguments.add_argument("--steps", type=int, required=True)
arguments.add_argument("--folder", required=True)
arguments.add_argument("--devices", type=int, required=True)
arguments.add_argument("--slots", type=int, default=0, help="csd.slots; 0: as many as there is memory for")
arguments.add_argument("--weights", help="folder with start values; default: random ones")
arguments.add_argument("--write-weights", action="store_true", help="write random ones to --weights, and nothing else")
arguments = arguments.parse_args()

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def wait():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


class HostMemory:
    """What this process takes of the host's memory, without the page cache."""

    def __init__(self):
        self.most_bytes = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        while True:
            sizes = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
            self.most_bytes = max(self.most_bytes, 1024 * sum(int(sizes[name].split()[0]) for name in ("RssAnon", "RssShmem")))
            time.sleep(0.05)


def write_weights(folder):
    """Random weights in the form of a published model, a file for each layer."""
    from safetensors.torch import save_file

    model, generator, places = make_model(), torch.Generator().manual_seed(3), {}
    parts = {}
    for name, p in model.named_parameters():
        parts.setdefault(name.split(".")[2] if ".layers." in name else name, []).append((name, p.shape))
    for number, part in enumerate(parts.values()):
        file = f"model-{number:05}.safetensors"
        save_file({name: torch.empty(shape, dtype=torch.bfloat16).normal_(1.0 if "norm" in name else 0.0, 0.02, generator=generator) for name, shape in part},
                  pathlib.Path(folder, file))
        places.update((name, file) for name, _ in part)
    pathlib.Path(folder, "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    model.config.save_pretrained(folder)


def make_model():
    with nearstep.empty(DEVICE):
        model = LlamaForCausalLM._from_config(LlamaConfig(**arguments.shape, use_cache=False, attention_dropout=0.0), dtype=torch.bfloat16)
    if arguments.row == "lora":
        import peft

        torch.manual_seed(1)
        settings = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
        model = peft.get_peft_model(model, settings)
    return model.train()


def main():
    torch.use_deterministic_algorithms(arguments.row in ("resident", "streamed"), warn_only=False)
    model = make_model()
    host = HostMemory()
    stream = nearstep.Stream(**arguments.stream) if arguments.stream else None
    opt = nearstep.AdamW(nearstep.groups(model, weight_decay=0.1), lr=1e-5, path=arguments.folder, state="compact", codec="q4",
                         devices=arguments.devices, durability="none", clip_norm=1.0, accumulation=1, stream=stream, weights=arguments.weights,
                         config={"csd.slots": arguments.slots} if arguments.slots else {})
    began = time.perf_counter()
    opt.resume()
    start_s = time.perf_counter() - began
    length = arguments.shape["max_position_embeddings"]
    generator = torch.Generator().manual_seed(2)
    phases, losses = [], []
    for _ in range(arguments.steps):
        tokens = torch.randint(arguments.shape["vocab_size"], (arguments.rows_of_step, length), generator=generator).to(DEVICE)
        wait()
        times = [time.perf_counter()]
        loss = model(input_ids=tokens, labels=tokens).loss
        wait()
        times.append(time.perf_counter())
        loss.backward()
        wait()
        times.append(time.perf_counter())
        opt.step()
        opt.zero_grad()
        losses.append(loss.item())
        times.append(time.perf_counter())
        phases.append([later - earlier for earlier, later in zip(times, times[1:])])
    opt.finish()
    phases = phases[1:] or phases
    forward_s, backward_s, step_s = (statistics.mean(phase) for phase in zip(*phases))
    stats = opt.stats()
    line = {"row": arguments.row, "parameters": sum(p.numel() for p in model.parameters()), "losses": losses,
            "tokens_per_s": arguments.rows_of_step * length / (forward_s + backward_s + step_s), "forward_s": forward_s,
            "backward_s": backward_s, "step_s": step_s, "update_s": stats["update_s"], "waited_s": stats["waited_s"], "start_s": start_s,
            "read_s": stats.get("read_s"), "awaited_s": stats.get("awaited_s"), "bytes": stats["bytes"], "host_gb": host.most_bytes / 1e9,
            "digest": f"{opt.masters_digest():016x}", "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"}
    if DEVICE.type == "cuda":
        line["gpu_gb"] = torch.cuda.max_memory_allocated() / 1e9
    print(json.dumps(line), flush=True)


if arguments.write_weights:
    write_weights(arguments.weights)
else:
    main()
