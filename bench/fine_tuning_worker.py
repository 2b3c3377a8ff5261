"""Does jobs of bench/fine_tuning: reads a job of JSON from each line of stdin, answers `result ` and a line of JSON.

fine_tuning_worker.py ENCODED WORK STATE [smoke]    folders: encoded data, pretrained networks, optimizer states
"""

import contextlib
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile
import time
import types

import numpy
import torch
import transformers

import fine_tuning_data as data
import fine_tuning_models as models
import fine_tuning_rows as rows
import nearstep

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DECAY, CLIP, WARM = 0.01, 1.0, 0.1
LORA_FACTOR = 5  # of the rate
EVALUATION_ROWS = 256


def on_device(batch):
    return {name: value.to(DEVICE, non_blocking=True) for name, value in batch.items()}


def loss_of(model, batch):
    with torch.autocast(DEVICE.type, torch.bfloat16):
        return model(**on_device(batch)).loss


def set_rate(optimizer, peak, share):
    """The rate when `share` of the training is done."""
    for group in optimizer.param_groups:
        group["lr"] = peak * min(share / WARM, (1 - share) / (1 - WARM))


# --- Pretraining ---


def pretrain(arguments, job):
    """Trains with nearstep for job["seconds"] over all calls; stops at job["until"] and goes on in the next call. The
    schedule follows the seconds. Writes the network as safetensors when it is done."""
    network, recipe = job["network"], job["recipe"]
    source = data.load(arguments.encoded, rows.NETWORKS[network])
    train, valid = (
        (source["train_images"], source["dev_images"]) if network == "vit" else (source["train"], source["valid"])
    )
    state = arguments.state / network
    torch.manual_seed(0)
    model = models.make(network, arguments.smoke).to(DEVICE, torch.bfloat16).train()
    if network == "bert":
        models.compute_masked_places(model)
    optimizer = nearstep.AdamW(
        nearstep.groups(model, weight_decay=DECAY),
        lr=recipe["rate"],
        path=str(state),
        clip_norm=CLIP,
        durability="checkpoint",
        devices=1 if arguments.smoke else 4,
        config={"checkpoint.path": str(state / "checkpoints")},
    )
    step = optimizer.resume()
    before = optimizer.extra["seconds"] if optimizer.extra else 0
    begin = time.monotonic()
    loss = torch.tensor(math.nan)
    while (done := before + time.monotonic() - begin) < job["seconds"] and time.time() < job["until"]:
        generator = numpy.random.default_rng(step)
        set_rate(optimizer, recipe["rate"], max(done / job["seconds"], 1e-3))
        loss = loss_of(model, models.pretraining_batch(network, train, recipe["batch"], generator))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
    result = {"finished": done >= job["seconds"], "steps": step, "seconds": done, "loss": loss.item()}
    if not result["finished"]:
        optimizer.save(extra={"seconds": done})
        optimizer.close()
        return result
    model.eval()
    with torch.no_grad():
        held_out = [
            loss_of(
                model, models.pretraining_batch(network, valid, recipe["batch"], numpy.random.default_rng(i))
            ).item()
            for i in range(4)
        ]
    partial = arguments.work / "pretrained" / f"{network}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    optimizer.export(str(partial), dtype="bf16")
    optimizer.close()
    partial.rename(partial.with_suffix(""))
    shutil.rmtree(state, ignore_errors=True)
    return result | {
        "heldout_loss": sum(held_out) / len(held_out),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


# --- Rows ---


class Task:
    """Batches of a task in an order that depends on the seed alone, and its measure."""

    def __init__(self, name, encoded, recipe, seed):
        source = data.load(encoded, rows.SOURCES[name])
        self.is_text = name == "Shakespeare"
        if self.is_text:
            self.parts = {part: tokens[: len(tokens) // 128 * 128].reshape(-1, 128) for part, tokens in source.items()}
            self.parts["dev"] = self.parts.pop("valid")
        else:
            self.parts = {
                part: {key.split("_")[1]: value for key, value in source.items() if key.startswith(part)}
                for part in ("train", "dev")
            }
        self.make = models.digits if name == "digits" else models.classified
        count = min(recipe.get("rows", 1 << 30), self.count("train"))
        generator = numpy.random.default_rng(seed)
        first = numpy.random.default_rng(0).permutation(self.count("train"))[:count]  # the same rows for all seeds
        order = numpy.concatenate([generator.permutation(first) for _ in range(recipe["epochs"])])
        self.order = [
            order[at : at + recipe["batch"]] for at in range(0, len(order) - recipe["batch"] + 1, recipe["batch"])
        ]
        self.evaluated = min(self.count("dev"), recipe.get("rows", 1 << 30))

    def count(self, part):
        return len(self.parts[part] if self.is_text else self.parts[part]["labels"])

    def batch(self, part, chosen):
        if self.is_text:
            ids = torch.from_numpy(self.parts[part][chosen].astype(numpy.int64))
            return {"input_ids": ids, "labels": ids}
        return self.make(self.parts[part], chosen)

    @torch.no_grad()
    def measure(self, model):
        """Accuracy in percent; of text, nats per token."""
        model.eval()
        total = 0.0
        each = 32 if self.is_text else EVALUATION_ROWS
        for at in range(0, self.evaluated, each):
            batch = self.batch("dev", numpy.arange(at, min(at + each, self.evaluated)))
            with torch.autocast(DEVICE.type, torch.bfloat16):
                found = model(**on_device(batch))
            right = (
                found.loss * len(batch["labels"])
                if self.is_text
                else (found.logits.argmax(-1).cpu() == batch["labels"]).sum() * 100
            )
            total += right.item()
        return total / self.evaluated


def make_optimizer(model, options, job, state):
    groups = nearstep.groups(model, weight_decay=DECAY)
    if options is None:
        return torch.optim.AdamW(list(groups), lr=1e-3, fused=DEVICE.type == "cuda")
    return nearstep.AdamW(
        groups,
        lr=1e-3,
        path=str(state),
        clip_norm=CLIP,
        durability="none",
        seed=job["seed"],
        fresh=True,
        accumulation=1,
        **options,
    )


def tune(arguments, job):
    """Fine-tunes the pretrained network. In memory its parameters are fp32; with nearstep they are bf16 and the masters
    are in the state.
    """
    recipe, options = job["recipe"], rows.settings()[job["setting"]]
    network = rows.TASKS[job["task"]]
    task = Task(job["task"], arguments.encoded, recipe, job["seed"])
    torch.manual_seed(job["seed"])
    model = models.load(network, arguments.work / "pretrained" / network).to(
        DEVICE, torch.float32 if options is None else torch.bfloat16
    )
    is_lora = job["setting"].startswith("LoRA")
    if is_lora:
        model = models.lora(model, network)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    state = pathlib.Path(tempfile.mkdtemp(prefix="row-", dir=arguments.state))
    optimizer = make_optimizer(model, options, job, state)
    begin = time.monotonic()
    losses, skipped = [], 0
    for step, chosen in enumerate(task.order):
        set_rate(optimizer, recipe["rate"] * (LORA_FACTOR if is_lora else 1), (step + 1) / (len(task.order) + 1))
        loss = loss_of(model, task.batch("train", chosen))
        loss.backward()
        if options is None and not torch.nn.utils.clip_grad_norm_(trained, CLIP).isfinite():
            skipped += 1  # as nearstep does
        else:
            optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    losses = torch.stack(losses).tolist()
    result = {
        "steps": len(losses),
        "losses": [round(loss, 4) for loss in losses],
        "train_loss": sum(losses[-20:]) / len(losses[-20:]),
        "trained_parameters": sum(p.numel() for p in trained),
        "skipped_steps": skipped,
    }
    if options is not None:
        optimizer.finish()
        result["skipped_steps"] = optimizer.stats()["skipped"]
        result["gradient_bytes"] = optimizer.stats()["bytes"]["host_gradients_write"]  # of a step
        optimizer.synchronize()
    result |= {"seconds": time.monotonic() - begin, "result": task.measure(model)}
    if options is not None:
        optimizer.close()
    shutil.rmtree(state, ignore_errors=True)
    return result


def main():
    encoded, work, state, *smoke = map(pathlib.Path, sys.argv[1:])
    arguments = types.SimpleNamespace(encoded=encoded, work=work, state=state, smoke=bool(smoke))
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    about = {
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    for text in sys.stdin:
        job = json.loads(text)
        with contextlib.redirect_stdout(sys.stderr):
            done = (pretrain if job["kind"] == "pretrain" else tune)(arguments, job)
        print("result " + json.dumps(done | about), flush=True)


os.environ["HF_HUB_OFFLINE"] = "1"
main()
