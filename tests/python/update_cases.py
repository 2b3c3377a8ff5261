"""Cases of equality_worker.py: optimizers, parameters without gradients, and number formats."""

import contextlib
import copy
import itertools
import os
import time
import warnings

import torch

import nearstep
import networks
from in_memory import FOLDER, LionInMemory, RANK, RANKS, STEPS, expect, state, train_both

MANY_STEPS = 50  # until rounded weights have learned


def _layers(step_of, reference_of, **tolerances):
    ours = networks.Layers(2)
    theirs = copy.deepcopy(ours)
    opt = step_of(ours)
    train_both(
        ours,
        theirs,
        opt,
        reference_of(theirs.parameters()),
        lambda m, step, share: m.loss(step % 4, share, RANKS),
        **tolerances,
    )
    opt.close()


def lion():
    """The sign of a sum near 0 may differ: a difference of two steps of 1e-4."""
    settings = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.01}
    _layers(lambda m: nearstep.Lion(m, **settings, **state()), lambda p: LionInMemory(p, **settings), weights=2.1e-4)


def compact_state():
    """Moments in bf16: close, but not equal."""
    _layers(
        lambda m: nearstep.AdamW(m, lr=1e-3, state="compact", **state()),
        lambda p: torch.optim.AdamW(p, lr=1e-3),
        tolerance=2e-2,
        weights=1e-2,
    )


# --- Parameters without gradients ---


def _sometimes(is_used, make, make_in_memory):
    ours = networks.Sometimes(is_used)
    theirs = copy.deepcopy(ours)
    opt = make(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_both(
            ours, theirs, opt, make_in_memory(theirs.parameters()), lambda m, step, share: m.loss(step, share, RANKS)
        )
    opt.close()
    return ours


def never_used():
    before = networks.Sometimes(None).layers[2][0].weight.detach().clone()
    ours = _sometimes(
        lambda step, share: False,
        lambda m: nearstep.AdamW(m, lr=1e-3, weight_decay=0.5, **state()),
        lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.5),
    )
    expect(torch.equal(ours.layers[2][0].weight, before), "what is not used is not decayed")


def used_in_some_steps():
    """SGD does not depend on the step's number, while PyTorch counts the steps of each parameter."""
    settings = {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}
    _sometimes(
        lambda step, share: step % 3 == 2,
        lambda m: nearstep.SGD(m, **settings, **state()),
        lambda p: torch.optim.SGD(p, **settings),
    )
    # Used at first: when gradients leave in backward already.
    ours = networks.Sometimes(lambda step, share: step < 3)
    opt = nearstep.SGD(ours, lr=0.2, weight_decay=0.01, **state("late"))
    rows = []
    for step in range(6):
        networks.descend(ours.loss(step), opt)
        rows.append(ours.layers[2][0].weight.detach().clone())
    expect(not torch.equal(rows[2], rows[1]), "what is used is trained")
    expect(all(torch.equal(row, rows[2]) for row in rows[3:]), "what is not used stays")
    opt.close()


def batches_that_one_rank_drops():
    """A step that a rank gives up takes place on no rank: when gradients have left, and when none has."""
    for accumulation in (None, 1):
        digests = []
        for drops in (False, True):
            ours = networks.Layers(2, 300)
            opt = nearstep.AdamW(ours, lr=1e-3, accumulation=accumulation, **state(f"drops{accumulation}{drops}"))
            for step in range(6):
                fails = drops and step in (0, 3)  # none has left in the first step
                if fails and RANK == 1:
                    handle = ours.layers[0].register_full_backward_hook(lambda *_: {}["no"])
                    try:
                        ours.loss(50).backward()
                    except KeyError:
                        opt.zero_grad() if step else ours.zero_grad()
                    handle.remove()
                elif fails:
                    networks.descend(ours.loss(50), opt)
                networks.descend(ours.loss(step), opt)
            opt.finish()
            expect(opt.steps == 6, f"{opt.steps} steps")
            digests.append(opt.masters_digest())
            opt.close()
        expect(digests[0] == digests[1], "the state is that of a run without these batches")


def _train_and_drop(keeps, has_module, drop=None, steps_too=False):
    """The parameters after three steps. ``drop``: how rank 1 drops a first batch and another one beside them."""
    ours = networks.Layers(1)
    opt = nearstep.SGD(ours if has_module else ours.parameters(), lr=0.1, keep_gradients=keeps, **state("drops"))
    for step in range(5):
        if step not in (0, 3):
            networks.descend(ours.loss(step, RANK, RANKS), opt)
        elif drop:
            ours.loss(50).backward()
            if RANK == 1:
                drop(ours, opt)
            if RANK == 0 or steps_too:
                opt.step()
            opt.zero_grad()
    expect(opt.steps == 3, f"{opt.steps} steps")
    opt.close()
    return list(ours.parameters())


def ways_in_which_one_rank_drops():
    """Gradients that are kept and those that are taken, by the optimizer's zero_grad() or the module's."""
    right = _train_and_drop(True, True)
    ways = {
        "optimizer": lambda ours, opt: opt.zero_grad(),
        "module": lambda ours, opt: ours.zero_grad(),
        "optimizer's zeros": lambda ours, opt: opt.zero_grad(set_to_none=False),
        "module's zeros": lambda ours, opt: ours.zero_grad(set_to_none=False),
    }
    for keeps, has_module, name, steps_too in itertools.product((False, True), (False, True), ways, (False, True)):
        if keeps and name == "module's zeros" and steps_too:
            continue  # zeros in p.grad are a gradient that counts
        found = _train_and_drop(keeps, has_module, ways[name], steps_too)
        expect(
            all(map(torch.equal, found, right)),
            f"{name}, keep_gradients={keeps}, module: {has_module}, step() too: {steps_too}",
        )


def parameters_that_all_ranks_write():
    ours, theirs = networks.Layers(2, 300), networks.Layers(2, 300)
    theirs.load_state_dict(ours.state_dict())
    opt = nearstep.AdamW(ours, lr=1e-2, **state("writes"))
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    for step in range(5):
        for model, optimizer in ((ours, opt), (theirs, reference)):
            networks.descend(model.loss(step), optimizer)
            if step % 2:
                with torch.no_grad():
                    for p in model.parameters():
                        p.clamp_(-0.02, 0.02)
    for p, q in zip(ours.parameters(), theirs.parameters()):
        expect(torch.allclose(p, q, atol=1e-6), "the masters are what the program wrote")
    with torch.no_grad():
        next(ours.parameters()).fill_(float(RANK))
    try:
        ours.loss(9).backward()
        opt.step()
        opt.finish()
        expect(False, "ranks that write different values are refused")
    except ValueError as error:
        expect("on every rank" in str(error), str(error))
    with contextlib.suppress(ValueError):  # the same, if the step had not begun
        opt.close()


def values_that_all_ranks_write():
    """Parameters in the engine's own memory, from which a rank sends the last step's values to the others."""
    for name, stream in (("streamed", nearstep.Stream(slots=2)), ("empty", None)):
        theirs = networks.Layers(3, 300)
        reference = torch.optim.SGD(theirs.parameters(), lr=0.1)
        with nearstep.empty() if name == "empty" else contextlib.nullcontext():
            ours = networks.Layers(3, 300)
        opt = nearstep.SGD(ours, lr=0.1, stream=stream, **state(f"values {name}"))
        opt.resume()
        ours.load_state_dict(theirs.state_dict())
        for step in range(8):
            for model, optimizer in ((ours, opt), (theirs, reference)):
                networks.descend(model.loss(step), optimizer)
                for limit in (0.02, 0.01):
                    with torch.no_grad():
                        for p in model.parameters():
                            p.clamp_(-limit, limit).mul_(1.5)
                        model.loss(99)
        for p, q in zip(ours.parameters(), theirs.parameters()):
            expect(torch.allclose(p, q, atol=1e-6), f"{name}: the masters are what the program wrote")
        opt.close()


def streamed_values_count_once():
    """Each rank writes the same change, also on GPUs, whose streamed parameters the ranks of a node have in one memory.
    It is a change of what all ranks saw, and not one after another's."""
    device = os.environ.get("NEARSTEP_TEST_DEVICE", "cpu")
    if device == "cuda":
        torch.cuda.set_device(RANK)

    def loss_of(model, step):
        x, y = torch.randn(2, 8, 300, generator=torch.Generator().manual_seed(step)).to(device)
        return torch.nn.functional.mse_loss(model(x), y)

    ours, theirs = networks.Layers(3, 300).to(device), networks.Layers(3, 300).to(device)
    opt = nearstep.SGD(ours, lr=0.1, stream=nearstep.Stream(slots=2), **state("once"))
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for step in range(6):
        for model, optimizer in ((ours, opt), (theirs, reference)):
            networks.descend(loss_of(model, step), optimizer)
            if step % 2:
                time.sleep(0.02 * RANK)  # one rank reads what the other has written, if they share it
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.9)
                loss_of(model, 99)
    for p, q in zip(ours.parameters(), theirs.parameters()):
        worst = (p.detach().cpu() - q.detach().cpu()).abs().max().item()
        expect(worst <= 1e-5, f"the masters are what the program wrote, but for {worst}")
    opt.close()


def used_in_some_steps_with_adamw():
    """AdamW counts the steps of each parameter, also after a restart and from a checkpoint."""
    theirs = networks.Sometimes(lambda step, share: step % 3 == 2)
    ours = copy.deepcopy(theirs)
    settings = {"lr": 3e-3, "weight_decay": 0.1}
    reference = torch.optim.AdamW(theirs.parameters(), **settings)
    checkpoint = None
    for begin, end in ((0, 7), (7, 14), (14, STEPS)):
        opt = nearstep.AdamW(ours, path=FOLDER / "sometimes", **settings)
        expect(opt.resume(checkpoint) == begin, f"{opt.steps} steps after {begin}")
        train_both(
            ours,
            theirs,
            opt,
            reference,
            lambda m, step, share: m.loss(step, share, RANKS),
            end,
            begin=begin,
            weights=1e-5,
        )
        checkpoint = opt.save() if end == 14 else None
        opt.close()


def many_groups():
    """64 groups that differ in all settings. The layers of half of them are left out of some steps, from the
    first on.
    """

    class Network(networks.Layers):
        def loss(self, step, share, shares):
            self.used = [i for i in range(len(self.layers)) if i % 2 == 0 or step % (3 + i % 3) == 2]
            return super().loss(step % 4, share, shares)

        def forward(self, x):
            for i in self.used:
                x = x + self.layers[i](x) / 8
            return x

    def groups(module):
        return [
            {
                "params": [p],
                "lr": 1e-3 + 2e-5 * i,
                "betas": (0.8 + 0.002 * i, 0.95 + 0.0007 * i),
                "weight_decay": 0.002 * i,
                "eps": 1e-5 * i,
            }
            for i, p in enumerate(module.parameters())
        ]

    ours = Network(32, 64)
    theirs = copy.deepcopy(ours)
    expect(len(groups(ours)) == 64, "64 groups")
    opt, reference = nearstep.AdamW(groups(ours), **state()), torch.optim.AdamW(groups(theirs))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step / 20)) for one in (opt, reference)]
    train_both(ours, theirs, opt, reference, lambda m, step, share: m.loss(step, share, RANKS), schedulers=schedulers)
    opt.close()


def used_on_one_rank():
    _sometimes(
        lambda step, share: share == 0,
        lambda m: nearstep.AdamW(m, lr=1e-3, weight_decay=0.1, **state()),
        lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
    )


# --- Formats ---


def bf16():
    """Close to fp32; the weights are the rounded masters."""
    ours, theirs = networks.Layers(2), networks.Layers(2)
    ours.bfloat16()
    opt = nearstep.AdamW(ours, lr=1e-3, **state())
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-3)

    def loss_of(module, step):
        x, y = torch.randn(2, 8, 256, generator=torch.Generator().manual_seed(step % 4)).chunk(RANKS, 1)[RANK]
        return torch.nn.functional.mse_loss(module(x.to(next(module.parameters()).dtype)).float(), y)

    losses = []
    for step in range(MANY_STEPS):
        for module, one in ((ours, opt), (theirs, reference)):
            loss = loss_of(module, step)
            loss.backward()
            losses.append(loss.item())
            if RANKS == 1 or module is ours:
                one.step()
            one.zero_grad()
    expect(all(p.dtype == torch.bfloat16 for p in ours.parameters()), "parameters stay bf16")
    expect(losses[-2] < 0.8 * losses[0], f"loss went from {losses[0]} to {losses[-2]}")
    if RANKS == 1:
        expect(abs(losses[-2] - losses[-1]) < 0.02 * losses[-1], f"{losses[-2]}, in fp32 {losses[-1]}")
    opt.close()


def fp16():
    def loss_of(module, step):
        x, y = torch.randn(2, 8, 256, generator=torch.Generator().manual_seed(step % 4))
        return torch.nn.functional.mse_loss(module(x.half()).float(), y)

    ours = networks.Layers(2).half()
    opt = nearstep.AdamW(ours, lr=1e-3, **state())
    losses = []
    skipped = 0
    for step in range(MANY_STEPS):
        loss = loss_of(ours, step)
        networks.descend(opt.scale(loss), opt)
        losses.append(loss.item())
        opt.finish()
        skipped += opt.stats()["is_skipped"]
    expect(losses[-1] < 0.8 * losses[0], f"loss went from {losses[0]} to {losses[-1]}")
    expect(skipped < MANY_STEPS // 2, f"{skipped} steps were skipped")
    expect(opt.scale(torch.tensor(1.0)).item() > 1, "the loss is scaled")
    opt.close()
    ours = networks.Layers(2).half()
    opt = nearstep.AdamW(ours, lr=1e-3, **state("unscaled"))
    loss_of(ours, 0).backward()
    try:
        opt.step()
    except RuntimeError as error:
        expect("opt.scale(loss).backward()" in str(error), str(error))
    else:
        expect(False, "float16 without a loss scale is refused")
    # The right order works afterwards, and training continues.
    opt.zero_grad()
    opt.scale(loss_of(ours, 0)).backward()
    opt.step()
    opt.close()
