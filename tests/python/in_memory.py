"""Trains a network with nearstep and a copy of it in memory with torch.optim, and compares them in every step."""

import copy
import os
import pathlib
import sys

import torch

import networks

RANK = int(os.environ.get("RANK", 0))
RANKS = int(os.environ.get("WORLD_SIZE", 1))
STEPS = 20
FOLDER = pathlib.Path(sys.argv[1])


def expect(is_true, what):
    if not is_true:
        raise AssertionError(what)


def state(name="state"):
    return {"path": FOLDER / name, "fresh": True}


def network(name, change=lambda module: None):
    """A network and its copy."""
    ours = networks.make(name)
    change(ours)
    return ours, copy.deepcopy(ours)


# A bias of the keys has no effect on softmax. Its gradient is rounding error, which Adam enlarges to whole steps.
BIASES_OF_KEYS = ("key.bias", "k_proj.bias", "c_attn.bias", "query_key_value.bias")


def expect_close(ours, theirs, tolerance):
    theirs = dict(theirs.named_parameters())
    for name, p in ours.named_parameters():
        if name.endswith(BIASES_OF_KEYS):
            continue
        difference = (p.detach().float() - theirs[name].detach().float()).abs().max().item()
        expect(difference <= tolerance, f"{name} differs by {difference}")


def train_both(
    ours,
    theirs,
    opt,
    reference,
    loss_of,
    steps=STEPS,
    accumulation=1,
    schedulers=(),
    clip_norm=None,
    tolerance=1e-5,
    weights=1e-4,
    begin=0,
):
    """Compares the losses of every step from ``begin`` on, and the weights at the end, within the tolerances.
    loss_of(module, step, share): the loss of that share of RANKS * accumulation."""
    first = last = 0.0
    for step in range(begin, steps):
        shares = [loss_of(theirs, step, share) for share in range(RANKS * accumulation)]
        (sum(shares) / len(shares)).backward()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm)
        for micro in range(accumulation):
            share = micro * RANKS + RANK
            loss = loss_of(ours, step, share)
            (loss / accumulation).backward()
            difference = abs(loss.item() - shares[share].item())
            expect(difference <= tolerance, f"step {step}: loss {loss.item()}, in memory {shares[share].item()}")
        reference.step()
        opt.step()
        for scheduler in schedulers:
            scheduler.step()
        reference.zero_grad()
        opt.zero_grad()
        last = sum(share.item() for share in shares) / len(shares)
        first = first or last
    expect(opt.steps == steps, f"{opt.steps} steps")
    expect(last < first, f"loss went from {first} to {last}")
    opt.synchronize()
    expect_close(ours, theirs, weights)


def batches(name, shares):
    """The loss of a share of a step's batch. A batch has four rows in all, or one per share. The same four batches
    repeat, so that the loss falls."""
    each = max(1, 4 // shares)

    def loss_of(module, step, share):
        generator = torch.Generator().manual_seed(100 * (step % 4) + share)
        return module(**networks.inputs(name, each, generator)).loss

    return loss_of


def groups_in_memory(module, decay):
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]


class LionInMemory(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(
                    group["lr"] * torch.sign(beta1 * m + (1 - beta1) * p.grad)
                )
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)
