"""Cases of equality_worker.py: bits that repeat, what ranks do apart, and the folders of the state."""

import contextlib
import time

import torch

import nearstep
import networks
from in_memory import FOLDER, RANK, RANKS, expect, state

PATHS = FOLDER / "paths"


# --- Bits ---


def same_bits_twice():
    """Checks that two runs have the same bits, also with other devices, codecs and clipping than the default."""
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


def _refused(what, *facts):
    try:
        what()
    except ValueError as error:
        expect(all(fact in str(error) for fact in facts), f"{facts}: {error}")
    else:
        raise AssertionError(f"{facts} were not refused")


def other_settings():
    """Checks that settings which one rank alone has are refused: arguments and groups are refused at the start, and a
    change in a step by that step."""
    last = RANK == RANKS - 1

    def begun(cls=nearstep.AdamW, **settings):
        ours = networks.Layers(2)
        opt = cls(nearstep.groups(ours, weight_decay=settings.pop("decay", 0.1)), **settings, **state("others"))
        networks.descend(ours.loss(0, RANK, RANKS), opt)

    others = {
        "lr of parameter group 0": {"lr": 0.5},
        "betas": {"betas": (0.5, 0.5)},
        "weight_decay": {"decay": 0.5},
        "clip_norm": {"clip_norm": 0.5},
        "seed": {"seed": 7},
        "codec": {"codec": "q4"},
        "state": {"state": "bf16"},
        "durability": {"durability": "none"},
        "accumulation": {"accumulation": 2},
        "keep_random": {"keep_random": True},
        "devices": {"devices": 2},
        "csd.subgroup_tiles": {"config": {"csd.subgroup_tiles": 3}},
        "the optimizer": {"cls": nearstep.Lion, "betas": (0.9, 0.999)},
    }
    for name, settings in others.items():
        given = {"lr": 1e-3, **(settings if last else {})}
        _refused(lambda given=given: begun(**given), name, f"on rank {RANKS - 1}")

    for change in ("lr", "clip_norm"):
        ours = networks.Layers(2)
        opt = nearstep.AdamW(ours, lr=1e-3, **state("others"))
        networks.descend(ours.loss(0, RANK, RANKS), opt)
        opt.finish()
        if last and change == "lr":
            opt.param_groups[0]["lr"] = 1e-4
        elif last:
            opt._intake.clipping.norm = 1.0

        def step():
            networks.descend(ours.loss(1, RANK, RANKS), opt)
            opt.finish()

        _refused(step, "step 2", change, f"on rank {RANKS - 1}")
        with contextlib.suppress(ValueError):
            opt.close()
        opt = nearstep.AdamW(networks.Layers(2), lr=1e-3, path=FOLDER / "others")
        expect(opt.resume() == 1, f"resumed at {opt.steps}")
        opt.close()


# --- Paths ---


def _trained(steps, **settings):
    """The steps at the start, and the digests then and after the steps."""
    ours = networks.Layers(3)
    opt = nearstep.AdamW(ours, lr=1e-3, **settings)
    start = opt.resume()
    digests = [opt.masters_digest()]
    for step in range(start, start + steps):
        networks.descend(ours.loss(step, RANK, RANKS), opt)
    digests.append(opt.masters_digest())
    opt.close()
    return start, *digests


def ranks_divide_the_paths():
    """Checks that ranks divide the paths, also when the state was divided by another rule."""

    def lie(name):
        return sorted(
            str(file.relative_to(PATHS / name)).replace(".set-1", "") for file in (PATHS / name).glob("*/rank-*.state")
        )

    for name, old_paths, devices in (("all in the first", ["a"], 1), ("each in all", ["a", "b"], 2)):
        folder = PATHS / name
        _, _, old = _trained(2, path=[folder / one for one in old_paths], devices=devices)
        start, found, _ = _trained(1, path=[folder / one for one in "ab"])
        expect((start, found) == (2, old), f"{name}: step {start}, {found} and {old}")
        expect(lie(name) == ["a/rank-0.device-0.state", "b/rank-1.device-0.state"], f"{name}: {lie(name)}")
    _trained(1, path=[PATHS / "three" / one for one in "abc"])
    expect(
        lie("three") == ["a/rank-0.device-0.state", "b/rank-0.device-1.state", "c/rank-1.device-0.state"],
        f"{lie('three')}",
    )
