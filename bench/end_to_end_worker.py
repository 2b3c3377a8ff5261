"""One row of bench/end_to_end, of the job that it gets as JSON: trains a GPT-2, a Llama or another model of
transformers for some steps and prints a line of JSON. A job with a log, as bench/killed_run gives it, goes on with the
run that is in its folder, and a line follows each step in that file. Of several processes, each has a GPU and rows of
its own, and the first prints.
"""

import dataclasses
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import time
import types

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # else much is lost between tensors
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", os.environ["PYTORCH_ALLOC_CONF"])  # its name in older versions

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import gpu_runs
import gpu_timeline
from end_to_end_trainers import DEVICE, make_trainer

arguments = types.SimpleNamespace(
    **{"weights": None, "writes_weights": False, "log": None, "gpus": 1} | json.loads(sys.argv[1])
)
LOCAL_RANK = os.environ.get("LOCAL_RANK") or os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") or "0"
RANK, RANKS = int(LOCAL_RANK), arguments.gpus  # all are on this host
if DEVICE.type == "cuda":
    torch.cuda.set_device(RANK)
HELD_OUT = 0.05  # of the text, at its end
COMPILED = arguments.row != "memory-eager" and DEVICE.type == "cuda" and not arguments.writes_weights
PEAK_FLOPS = 989.5e12  # of an H100 or H200 in bf16, dense


def compile_block(block):
    """Compiles the block; for DeepSpeed only its forward, so that the hooks that fetch its parameters stay outside."""
    if arguments.row.startswith("deepspeed"):
        block.forward = torch.compile(block.forward)
    else:
        block.compile()


def places():
    """Returns where a model is made: on the device, or without memory where its weights come from files."""
    if arguments.weights is None or arguments.writes_weights:
        return torch.device(DEVICE)
    import nearstep

    return nearstep.empty(DEVICE)


def compile_model(model, blocks):
    if COMPILED and arguments.compiles == "whole":
        model.compile()
    elif COMPILED:
        for block in blocks:
            compile_block(block)


def compute_in_float8(model):
    from torchao.float8 import Float8GemmConfig, Float8LinearConfig, convert_to_float8_training

    recipe, has_head = arguments.float8
    config = Float8LinearConfig.from_recipe_name("tensorwise" if recipe == "fast" else recipe)
    if recipe == "fast":
        fast = Float8GemmConfig(use_fast_accum=True)
        config = dataclasses.replace(config, gemm_config_grad_input=fast, gemm_config_grad_weight=fast)
    has_float8 = DEVICE.type == "cuda" and torch.cuda.get_device_capability() >= (8, 9)
    config = dataclasses.replace(config, emulate=not has_float8)
    convert_to_float8_training(model if has_head else model.model.layers, config=config)


def make_llama():
    shape = arguments.shape
    torch.manual_seed(1)
    config = LlamaConfig(
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"],
        hidden_size=shape["width"],
        intermediate_size=shape["inner"],
        max_position_embeddings=shape["context"],
        vocab_size=shape["vocabulary"],
        attention_dropout=0.0,
        use_cache=False,
    )
    with places():
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
    if "fp8" in arguments.row:
        compute_in_float8(model)
    compile_model(model, model.model.layers)
    return with_adapters(model).train()


def with_adapters(model):
    if "lora" not in arguments.row:
        return model
    import peft

    settings = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
    return peft.get_peft_model(model, settings)


def make_other():
    """A model of another kind, with random weights as its class makes them."""
    torch.manual_seed(1)
    kind = arguments.shape["kind"]
    if kind == "dit":
        from denoiser import Denoiser

        with places():
            model = Denoiser(arguments.shape["config"]).bfloat16()
        compile_model(model, model.network.transformer_blocks)
        return model.train()
    task = transformers.AutoModelForImageClassification if kind == "vit" else transformers.AutoModelForCausalLM
    with places():
        model = task.from_config(
            transformers.AutoConfig.for_model(kind, **arguments.shape["config"]), dtype=torch.bfloat16
        )
    compile_model(model, max((part for part in model.modules() if isinstance(part, torch.nn.ModuleList)), key=len))
    return with_adapters(model).train()


def make_model():
    if "kind" in arguments.shape:
        return make_other()
    if "inner" in arguments.shape:
        return make_llama()
    shape = arguments.shape
    if arguments.row.endswith("-aligned"):
        shape["vocabulary"] = -(-shape["vocabulary"] // 64) * 64
    torch.manual_seed(1)
    config = GPT2Config(
        n_layer=shape["layers"],
        n_head=shape["heads"],
        n_embd=shape["width"],
        n_positions=shape["context"],
        vocab_size=shape["vocabulary"],
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    with places():
        model = (
            GPT2LMHeadModel._from_config(config, dtype=torch.bfloat16)
            if arguments.weights
            else GPT2LMHeadModel(config).to(torch.bfloat16)
        )
    compile_model(model, model.transformer.h)
    return model.train()


def batches(is_held_out=False):
    """Rows from random places of the text, the same for all rows of the table, as the model takes them. The bytes are
    the pixels of an image, too.
    """
    text = torch.frombuffer(bytearray(pathlib.Path(arguments.text).read_bytes()), dtype=torch.uint8)
    border = int(len(text) * (1 - HELD_OUT))
    text = text[border:] if is_held_out else text[:border]
    generator = torch.Generator().manual_seed((3 if is_held_out else 2) + 1000 * RANK)
    kind, config = arguments.shape.get("kind"), arguments.shape.get("config", {})
    if kind == "dit":
        from denoiser import TIMES
    channels, side = {"vit": (3, config.get("image_size")), "dit": (4, config.get("sample_size"))}.get(kind, (0, 0))
    length = channels * side * side or arguments.shape["context"]
    while True:
        places = torch.randint(len(text) - length, (arguments.micro_batch, 1), generator=generator)
        row = text[places + torch.arange(length)].long().to(DEVICE)
        pixels = (row.view(-1, channels, side, side) / 128 - 1).bfloat16() if channels else None
        if kind == "vit":
            yield {"pixel_values": pixels, "labels": row[:, 0]}
        elif kind == "dit":
            noise = torch.randn(pixels.shape, generator=generator).to(pixels)
            times = torch.randint(TIMES, (len(row),), generator=generator).to(DEVICE)
            yield {"latents": pixels, "noise": noise, "times": times, "classes": row[:, 0]}
        else:
            yield {"input_ids": row, "labels": row}


def write(**what):
    """A line of the log, with the time."""
    if arguments.log:
        with open(arguments.log, "a") as file:
            file.write(json.dumps({"time": time.time(), **what}) + "\n")


def note(parts, name, begin):
    """Seconds since ``begin`` at which the first and the second micro-batch of the first step were so far."""
    if len(parts) < 4:
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        parts.append((name, time.perf_counter() - begin))


def memory_facts(file):
    """Returns the memory that a file of /proc names, in GB by name. Raises OSError where there is no such file."""
    pairs = (line.split(":", 1) for line in pathlib.Path("/proc", file).read_text().splitlines() if line.endswith("kB"))
    return {name: int(value.split()[0]) * 1024 / 1e9 for name, value in pairs}


def resident_gb():
    """The most of the host's memory that this process had, with what its children have for themselves; None where the
    kernel does not say.
    """
    try:
        own = memory_facts("self/status")["VmHWM"]
        children = multiprocessing.active_children()
        return own + sum(memory_facts(f"{child.pid}/status")["RssAnon"] for child in children)
    except (OSError, KeyError):
        return None


def resident_parts():
    """This process's memory now, and the kernel's own of the whole machine, in GB; empty where the kernel does not
    say."""
    try:
        found = memory_facts("self/status") | memory_facts("meminfo")
    except OSError:
        return {}
    wanted = ("RssAnon", "RssFile", "RssShmem", "Shmem", "PageTables", "SUnreclaim", "VmallocUsed")
    return {name: found[name] for name in wanted if name in found}


def main():
    model = make_model()
    if arguments.writes_weights:
        model.save_pretrained(arguments.weights)
        print("{}")
        return
    trainer = make_trainer(model, arguments)
    module = getattr(trainer, "engine", model)
    made = time.time()
    done, source = trainer.begin(), batches()
    for _ in range(done * arguments.accumulation):
        next(source)
    write(begins=done, model=made)
    seconds, losses, drive, parts = [], [], [sum(gpu_runs.drive_bytes())], []

    def train():
        begin = time.perf_counter()
        total = 0
        for _ in range(arguments.accumulation):
            loss = module(**next(source)).loss
            note(parts, "forward", begin)
            trainer.backward(loss)
            note(parts, "backward", begin)
            total = total + loss.detach()
        trainer.step()
        losses.append(total.item() / arguments.accumulation)  # waits for the device, as printing the loss would
        seconds.append(time.perf_counter() - begin)
        drive.append(sum(gpu_runs.drive_bytes()))

    for step in range(done, arguments.steps):
        train()
        write(step=step + 1, loss=losses[-1], durable=trainer.durable())
    count = len(seconds)
    trace = {"trace": gpu_timeline.traced(train)} if arguments.trace and DEVICE.type == "cuda" else {}
    seconds, losses = seconds[:count], losses[:count]
    reported = trainer.statistics() | trace
    source = batches(is_held_out=True)
    with torch.no_grad():
        held_out = [module(**next(source)).loss.item() for _ in range(2)]
    # The first steps compile and allocate. An update that continues into the next step counts in that step's time.
    first = 2 if count > 2 else 0
    steady = seconds[first:]
    drive_gb_per_s = (drive[count] - drive[first]) / sum(steady) / 1e9
    tokens = RANKS * arguments.micro_batch * arguments.accumulation * arguments.shape["context"]
    line = {
        "row": arguments.row,
        "tokens_per_s": tokens / statistics.median(steady),
        "least_tokens_per_s": tokens / max(steady),
        "most_tokens_per_s": tokens / min(steady),
        "seconds": seconds,
        "losses": losses,
        "heldout_loss": statistics.mean(held_out),
        "drive_gb_per_s": drive_gb_per_s,
        **reported,
        "first_step_s": seconds[0],
        "first_step": parts,
        "resident_gb": resident_gb(),
        "resident_parts_gb": resident_parts(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
    }
    if DEVICE.type == "cuda":
        line["gpu_gb"] = torch.cuda.max_memory_allocated() / 1e9
        line["gpu_reserved_gb"] = torch.cuda.max_memory_reserved() / 1e9
        free, whole = torch.cuda.mem_get_info()
        line["gpu_outside_gb"] = (whole - free - torch.cuda.memory_reserved()) / 1e9  # context, and the engine's own
        line["mfu"] = (
            sum((6 if p.requires_grad else 4) * p.numel() for p in model.parameters())
            * line["tokens_per_s"]
            / (PEAK_FLOPS * RANKS)
        )
    if RANK == 0:
        print(json.dumps(line), flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":  # DeepSpeed's offload reads this file again in the process that updates
    main()
