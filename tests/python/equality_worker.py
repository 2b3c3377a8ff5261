"""Cases that train one network with nearstep and a copy in memory with torch.optim, on every rank.

    equality_worker.py FOLDER CASE...

The copy gets all ranks' shares of a batch, this rank's network only its own. Each rank writes
FOLDER/results-RANK.jsonl. On several ranks a failed case ends the run, because the ranks would no longer be in step.
"""
import contextlib
import copy
import faulthandler
import json
import os
import pathlib
import sys
import time
import traceback
import warnings

import torch

import nearstep
import networks
from in_memory import LionInMemory, RANK, RANKS, STEPS, batches, expect, groups_in_memory, train_both
from path_cases import ranks_divide_the_paths  # noqa: F401

FOLDER = pathlib.Path(sys.argv[1])


def state(name="state"):
    return {"path": FOLDER / name, "fresh": True}


def network(name, change=lambda module: None):
    ours = networks.make(name)
    change(ours)
    return ours, copy.deepcopy(ours)


# --- Architectures ---

def gpt2_groups_cosine_clipping():
    """The head is tied to the embedding."""
    from transformers import get_cosine_schedule_with_warmup
    ours, theirs = network("gpt2")
    expect(ours.lm_head.weight is ours.transformer.wte.weight, "the head is tied")
    opt = nearstep.AdamW(nearstep.groups(ours, weight_decay=0.1), lr=2e-3, clip_norm=0.5, **state())
    reference = torch.optim.AdamW(groups_in_memory(theirs, 0.1), lr=2e-3)
    schedulers = [get_cosine_schedule_with_warmup(one, 5, STEPS) for one in (opt, reference)]
    train_both(ours, theirs, opt, reference, batches("gpt2", RANKS), schedulers=schedulers, clip_norm=0.5)
    expect(ours.lm_head.weight is ours.transformer.wte.weight, "the head is tied still")
    expect([g["lr"] for g in opt.param_groups] == [g["lr"] for g in reference.param_groups], "learning rates")
    opt.finish()
    facts = opt.stats()
    expect(facts["step"] == STEPS and facts["norm"] > 0 and not facts["is_skipped"], f"{facts}")
    opt.close()


def gpt2_empty():
    """Each rank reads its own tiles of the files."""
    theirs = networks.make("gpt2")

    def emptied(weights, name):
        with nearstep.empty():
            ours = type(theirs)(theirs.config)
        return ours, nearstep.AdamW(ours, lr=1e-3, weights=weights, **state(name))

    folder = FOLDER / f"weights-{RANK}"
    theirs.save_pretrained(folder)
    ours, opt = emptied(folder, "state")
    train_both(ours, theirs, opt, torch.optim.AdamW(theirs.parameters(), lr=1e-3), batches("gpt2", RANKS))
    opt.close()
    networks.make("gpt2").to(torch.bfloat16 if RANK else torch.float32).save_pretrained(folder)
    ours, opt = emptied(folder, "mixed")
    try:
        opt.resume()
    except ValueError as error:
        expect("The ranks read different weights" in str(error), str(error))
    else:
        expect(False, "files in two formats are refused")


def llama_streamed():
    """More layers than slots."""
    shape = networks.make("llama").config.to_dict() | {"num_hidden_layers": 4}
    torch.manual_seed(6)
    theirs = type(networks.make("llama"))(type(networks.make("llama").config)(**shape))
    ours = copy.deepcopy(theirs)
    opt = nearstep.AdamW(nearstep.groups(ours, weight_decay=0.1), lr=1e-3, stream=nearstep.Stream(slots=2), **state())
    reference = torch.optim.AdamW(groups_in_memory(theirs, 0.1), lr=1e-3)
    train_both(ours, theirs, opt, reference, batches("llama", RANKS), steps=12)
    opt.close()


def _accumulation(name, count, **settings):
    ours, theirs = network(name)
    opt = nearstep.AdamW(ours, lr=1e-3, **settings, **state())
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    schedulers = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step / 10)) for one in (opt, reference)]
    train_both(ours, theirs, opt, reference, batches(name, RANKS * count), accumulation=count, schedulers=schedulers)
    opt.close()


def gpt2_accumulation_learned():
    _accumulation("gpt2", 3)


def gpt2_accumulation_given():
    _accumulation("gpt2", 2, accumulation=2)


def bloom_accumulation():
    _accumulation("bloom", 2)


def llama_accumulation():
    _accumulation("llama", 2, accumulation=2)


def _plain(name, change=lambda module: None):
    ours, theirs = network(name, change)
    opt = nearstep.AdamW(ours, lr=1e-3, **state())
    reference = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=1e-3)
    train_both(ours, theirs, opt, reference, batches(name, RANKS))
    opt.close()


def bert():
    _plain("bert")


def vit():
    _plain("vit")


def qwen2_frozen_embeddings():
    def freeze(module):
        module.get_input_embeddings().weight.requires_grad_(False)

    before = networks.make("qwen2").get_input_embeddings().weight.detach().clone()
    ours, theirs = network("qwen2", freeze)
    opt = nearstep.AdamW(ours, lr=1e-3, **state())
    reference = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=1e-3)
    train_both(ours, theirs, opt, reference, batches("qwen2", RANKS))
    expect(torch.equal(ours.get_input_embeddings().weight, before), "embeddings are frozen")
    opt.close()


def lora():
    import peft

    def adapted():
        torch.manual_seed(3)
        settings = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(networks.make("gpt2"), settings)

    ours, theirs = adapted(), adapted()
    base = {name: p.detach().clone() for name, p in ours.named_parameters() if "lora_" not in name}
    opt = nearstep.AdamW(ours, lr=1e-2, **state())
    reference = torch.optim.AdamW([p for p in theirs.parameters() if p.requires_grad], lr=1e-2)
    train_both(ours, theirs, opt, reference, batches("gpt2", RANKS))
    expect(all("lora_" in name for name in opt._names) and len(opt._names) == 4, f"trained: {opt._names}")
    expect(opt.stats()["bytes"]["internal_read"] < 4 * 4 * 65536, "only the adapters are in the state")
    for name, p in ours.named_parameters():
        expect("lora_" in name or torch.equal(p, base[name]), f"{name} is frozen")
    opt.close()


# --- Optimizers ---

def _layers(step_of, reference_of, **tolerances):
    ours = networks.Layers(2)
    theirs = copy.deepcopy(ours)
    opt = step_of(ours)
    train_both(ours, theirs, opt, reference_of(theirs.parameters()), lambda m, step, share: m.loss(step % 4, share, RANKS), **tolerances)
    opt.close()


def adam():
    settings = {"lr": 1e-3, "betas": (0.8, 0.98), "eps": 1e-6, "weight_decay": 0.02}
    _layers(lambda m: nearstep.Adam(m, **settings, **state()), lambda p: torch.optim.Adam(p, **settings))


def sgd():
    settings = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.001}
    _layers(lambda m: nearstep.SGD(m, **settings, **state()), lambda p: torch.optim.SGD(p, **settings))


def adagrad():
    settings = {"lr": 5e-3, "weight_decay": 0.001}
    _layers(lambda m: nearstep.Adagrad(m, **settings, **state()), lambda p: torch.optim.Adagrad(p, **settings))


def lion():
    """The sign of a sum near 0 may differ: a difference of two steps of 1e-4."""
    settings = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.01}
    _layers(lambda m: nearstep.Lion(m, **settings, **state()), lambda p: LionInMemory(p, **settings), weights=2.1e-4)


def tensors_as_parameters():
    """step() waits, because there is no module whose forward could wait."""
    settings = {"lr": 1e-3}
    _layers(lambda m: nearstep.AdamW(list(m.parameters()), **settings, **state()), lambda p: torch.optim.AdamW(p, **settings))
    _layers(lambda m: nearstep.AdamW([{"params": m.layers[0].parameters(), "lr": 2e-3}, {"params": m.layers[1].parameters()}], **settings,
                                     **state("second")),
            lambda p: (lambda p: torch.optim.AdamW([{"params": p[:2], "lr": 2e-3}, {"params": p[2:]}], **settings))(list(p)))


def compact_state():
    """Moments in bf16: close, but not equal."""
    _layers(lambda m: nearstep.AdamW(m, lr=1e-3, state="compact", **state()), lambda p: torch.optim.AdamW(p, lr=1e-3), tolerance=2e-2,
            weights=1e-2)


# --- Parameters without gradients ---

def _sometimes(is_used, make, make_in_memory):
    ours = networks.Sometimes(is_used)
    theirs = copy.deepcopy(ours)
    opt = make(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train_both(ours, theirs, opt, make_in_memory(theirs.parameters()), lambda m, step, share: m.loss(step, share, RANKS))
    opt.close()
    return ours


def never_used():
    before = networks.Sometimes(None).layers[2][0].weight.detach().clone()
    ours = _sometimes(lambda step, share: False, lambda m: nearstep.AdamW(m, lr=1e-3, weight_decay=0.5, **state()),
                      lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.5))
    expect(torch.equal(ours.layers[2][0].weight, before), "what is not used is not decayed")


def used_in_some_steps():
    """SGD does not depend on the step's number, while PyTorch counts the steps of each parameter."""
    settings = {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}
    _sometimes(lambda step, share: step % 3 == 2, lambda m: nearstep.SGD(m, **settings, **state()), lambda p: torch.optim.SGD(p, **settings))
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


def used_in_some_steps_with_adamw():
    """AdamW counts the steps of each parameter, also after a restart and from a checkpoint."""
    theirs = networks.Sometimes(lambda step, share: step % 3 == 2)
    ours = copy.deepcopy(theirs)
    settings = {"lr": 3e-3, "weight_decay": 0.1}
    reference = torch.optim.AdamW(theirs.parameters(), **settings)
    checkpoint = None
    for begin, end in ((0, 16), (16, 31), (31, STEPS)):
        opt = nearstep.AdamW(ours, path=FOLDER / "sometimes", **settings)
        expect(opt.resume(checkpoint) == begin, f"{opt.steps} steps after {begin}")
        train_both(ours, theirs, opt, reference, lambda m, step, share: m.loss(step, share, RANKS), end, begin=begin, weights=1e-5)
        checkpoint = opt.save() if end == 31 else None
        opt.close()


def many_groups():
    """64 groups that differ in all settings. The layers of half of them are left out of some steps, from the first on."""
    class Network(networks.Layers):
        def loss(self, step, share, shares):
            self.used = [i for i in range(len(self.layers)) if i % 2 == 0 or step % (3 + i % 3) == 2]
            return super().loss(step % 4, share, shares)

        def forward(self, x):
            for i in self.used:
                x = x + self.layers[i](x) / 8
            return x

    def groups(module):
        return [{"params": [p], "lr": 1e-3 + 2e-5 * i, "betas": (0.8 + 0.002 * i, 0.95 + 0.0007 * i), "weight_decay": 0.002 * i}
                for i, p in enumerate(module.parameters())]

    ours = Network(32, 64)
    theirs = copy.deepcopy(ours)
    expect(len(groups(ours)) == 64, "64 groups")
    opt, reference = nearstep.AdamW(groups(ours), **state()), torch.optim.AdamW(groups(theirs))
    schedulers = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step / 20)) for one in (opt, reference)]
    train_both(ours, theirs, opt, reference, lambda m, step, share: m.loss(step, share, RANKS), schedulers=schedulers)
    opt.close()


def used_on_one_rank():
    _sometimes(lambda step, share: share == 0, lambda m: nearstep.AdamW(m, lr=1e-3, weight_decay=0.1, **state()),
               lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1))


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
    for step in range(STEPS):
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
    for step in range(STEPS):
        loss = loss_of(ours, step)
        networks.descend(opt.scale(loss), opt)
        losses.append(loss.item())
        opt.finish()
        skipped += opt.stats()["is_skipped"]
    expect(losses[-1] < 0.8 * losses[0], f"loss went from {losses[0]} to {losses[-1]}")
    expect(skipped < STEPS // 2, f"{skipped} steps were skipped")
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


def mixed_formats():
    """The first layer in bf16, the others in fp32. Masters are fp32, and each parameter keeps its format."""
    ours = networks.Layers(3)
    ours.layers[0].bfloat16()
    opt = nearstep.AdamW(ours, lr=1e-3, **state())
    losses = []
    for step in range(STEPS):
        x, y = torch.randn(2, 8, 256, generator=torch.Generator().manual_seed(step % 4))
        x = ours.layers[0](x.bfloat16()).float()
        losses.append(networks.descend(torch.nn.functional.mse_loss(ours.layers[2](ours.layers[1](x)), y), opt))
    expect(losses[-1] < 0.8 * losses[0], f"loss went from {losses[0]} to {losses[-1]}")
    expect([p.dtype for p in ours.parameters()] == 2 * [torch.bfloat16] + 4 * [torch.float32], "formats stay")
    opt.close()


# --- Bits ---

def same_bits_twice():
    """Also with other devices, codecs and clipping than the default."""
    for settings in ({}, {"codec": "q4", "state": "compact", "clip_norm": 0.5, "devices": 2}):
        digests = []
        for turn in range(2):
            ours = networks.Layers(3)
            opt = nearstep.AdamW(ours, lr=1e-3, **settings, **state())
            for step in range(8):
                networks.descend(ours.loss(step, RANK, RANKS), opt)
            digests.append((opt.masters_digest(), [p.detach().clone() for p in ours.parameters()]))
            opt.close()
        expect(digests[0][0] == digests[1][0], f"{settings}: {digests[0][0]} and {digests[1][0]}")
        expect(all(map(torch.equal, digests[0][1], digests[1][1])), f"{settings}: parameters differ")


def _fed(order, steps=6, **settings):
    """The digest and the masters after steps with recorded gradients, given in this order."""
    ours = networks.Layers(3)
    opt = nearstep.AdamW(nearstep.groups(ours, weight_decay=0.1), lr=1e-3, **settings, **state("fed"))
    parameters = list(ours.parameters())
    for step in range(steps):
        gradients = recorded(parameters, step, RANK)
        opt.synchronize()  # parameters are read outside of a forward
        for i in order(len(parameters), step):
            if order is by_hand:
                parameters[i].grad = gradients[i]
            else:  # as backward does
                (parameters[i] * gradients[i]).sum().backward()
        opt.step()
        opt.zero_grad()
    opt.synchronize()
    out = opt.masters_digest(), [p.detach().clone() for p in parameters]
    opt.close()
    return out


def recorded(parameters, step, rank):
    generator = torch.Generator().manual_seed(10_000 + 10 * step + rank)
    return [torch.randn(p.shape, generator=generator) for p in parameters]


def by_hand(count, step):
    return range(count)


def backwards(count, step):
    return reversed(range(count))


def shuffled(count, step):
    """A different order on each rank."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(20 * step + RANK)).tolist()


def order_of_gradients():
    digests = [_fed(order)[0] for order in (by_hand, backwards, shuffled)]
    expect(len(set(digests)) == 1, f"by hand, backwards, shuffled: {digests}")
    quantized = [_fed(order, codec="q4")[0] for order in (backwards, shuffled)]
    expect(quantized[0] == quantized[1] != digests[0], f"q4: {quantized}")


def recorded_gradients():
    """Compares with AdamW in double precision, using the mean of the ranks' gradients."""
    _, masters = _fed(by_hand)
    parameters = [p.detach().double() for p in networks.Layers(3).parameters()]
    first = [torch.zeros_like(p) for p in parameters]
    second = [torch.zeros_like(p) for p in parameters]
    for step in range(6):
        gradients = [recorded(parameters, step, rank) for rank in range(RANKS)]
        for i, p in enumerate(parameters):
            gradient = sum(of_rank[i].double() for of_rank in gradients) / RANKS
            first[i] = 0.9 * first[i] + 0.1 * gradient
            second[i] = 0.999 * second[i] + 0.001 * gradient**2
            mean, square = first[i] / (1 - 0.9 ** (step + 1)), second[i] / (1 - 0.999 ** (step + 1))
            p.mul_(1 - 1e-3 * (0.1 if p.dim() >= 2 else 0)).sub_(1e-3 * mean / (square.sqrt() + 1e-8))
    for one, other in zip(masters, parameters):
        difference = (one.double() - other).abs().max().item()
        expect(difference <= 1e-6, f"differs by {difference}")


# --- Ranks ---

def evaluation_on_rank_0():
    """Rank 0 evaluates after every second step while the others continue; nobody waits for a missing rank."""
    ours = networks.Layers(3)
    opt = nearstep.AdamW(ours, lr=1e-3, **state())
    for step in range(6):
        networks.descend(ours.loss(step, RANK, RANKS), opt)
        if step % 2 and RANK == 0:
            with torch.no_grad():
                before = time.monotonic()
                while time.monotonic() < before + 0.3:
                    ours.loss(99)
            opt.synchronize()
            opt.finish()
            expect(opt.stats()["step"] == step + 1, f"{opt.stats()}")
    expect(opt.steps == 6, f"{opt.steps}")
    opt.close()


def start_values_of_rank_0():
    """Whatever start values the others have."""
    ours = networks.Layers(2)
    wanted = [p.detach().clone() for p in ours.parameters()]
    if RANK:
        with torch.no_grad():
            for p in ours.parameters():
                p.add_(1)
    opt = nearstep.AdamW(ours, lr=1e-3, **state())
    expect(opt.ranks == RANKS and opt.rank == RANK, f"rank {opt.rank} of {opt.ranks}")
    expect(all(map(torch.equal, ours.parameters(), wanted)), "all ranks begin with rank 0's")
    opt.close()


def main():
    with open(FOLDER / f"results-{RANK}.jsonl", "w") as results:
        for name in sys.argv[2:]:
            failure = ""
            print(f"case {name}", flush=True)
            faulthandler.dump_traceback_later(int(os.environ.get("NEARSTEP_HANGS_AFTER", 180)), exit=True)  # says where
            began = time.process_time()
            try:
                globals()[name]()
            except Exception:
                failure = traceback.format_exc()
            seconds = time.process_time() - began
            results.write(json.dumps({"name": name, "failure": failure, "seconds": seconds}) + "\n")
            results.flush()
            if failure and RANKS > 1:
                sys.exit(failure)


main()
