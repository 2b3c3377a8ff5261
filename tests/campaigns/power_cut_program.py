"""A PyTorch program with steps of every kind, which tests/campaigns/power_cuts starts with the words of the command
train: parameters that the program writes, gradients that it drops or that are NaN, norms that clip and that do not, a
layer without a gradient, and groups whose settings change.
"""

import argparse
import json
import pathlib
import sys
import tomllib

import torch

import nearstep

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
import networks  # noqa: E402

KINDS = 6


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", action="append", dest="settings")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--metrics", type=pathlib.Path)
    parser.add_argument("--fresh", action="store_true")
    arguments, _ = parser.parse_known_args()
    texts = dict(one.split("=", 1) for one in arguments.settings)
    arguments.settings = {key: tomllib.loads(f"value = {text}")["value"] for key, text in texts.items()}
    return arguments


def take(model, opt, step):
    """Makes the step of this number, which is the same in every run."""
    kind = step % KINDS
    first, second = opt.param_groups
    first["lr"] = second["lr"] = 1e-3 * (1 + step % 3)
    first["weight_decay"] = 0.1 * (step // 4 % 2)
    if kind == 1:
        generator = torch.Generator().manual_seed(step)
        with torch.no_grad():
            model.layers[0][0].weight.copy_(torch.randn(model.width, model.width, generator=generator) / 16)
    if kind == 2:
        model.loss(step + 1).backward()
        opt.zero_grad()
    loss = model.loss(step) * (float("nan") if kind == 3 else 100 if kind in (0, 4) else 1)
    loss.backward()
    opt.step()
    opt.zero_grad()


def main():
    arguments = parse()
    settings = arguments.settings
    stop_at = settings.pop("train.stop_at")
    model = networks.Sometimes(lambda step, share: step % KINDS != KINDS - 1)
    opt = nearstep.AdamW(
        nearstep.groups(model, weight_decay=0.1),
        lr=1e-3,
        clip_norm=0.5,
        path=settings.pop("csd.path"),
        log=settings.pop("csd.log", None),
        fresh=arguments.fresh,
        config=settings,
    )
    start = opt.resume()
    print(f"resumed from the state at step {start}", flush=True)
    for step in range(start, stop_at):
        take(model, opt, step)
        if arguments.metrics:
            with open(arguments.metrics, "a") as file:
                file.write(json.dumps({"step": opt.durable_step + 1}) + "\n")
    arguments.json.write_text(json.dumps({"masters_xxh3": opt.masters_digest()}))


main()
