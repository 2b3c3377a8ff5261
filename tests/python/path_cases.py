"""Cases of equality_worker.py about the folders of the state."""
import pathlib
import sys

import nearstep
import networks
from in_memory import RANK, RANKS, expect

FOLDER = pathlib.Path(sys.argv[1]) / "paths"


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
    """Also when the state was divided by another rule."""
    def lie(name):
        return sorted(str(file.relative_to(FOLDER / name)).replace(".set-1", "") for file in (FOLDER / name).glob("*/rank-*.state"))

    for name, old_paths, devices in (("all in the first", ["a"], 1), ("each in all", ["a", "b"], 2)):
        folder = FOLDER / name
        _, _, old = _trained(2, path=[folder / one for one in old_paths], devices=devices)
        start, found, _ = _trained(1, path=[folder / one for one in "ab"])
        expect((start, found) == (2, old), f"{name}: step {start}, {found} and {old}")
        expect(lie(name) == ["a/rank-0.device-0.state", "b/rank-1.device-0.state"], f"{name}: {lie(name)}")
    _trained(1, path=[FOLDER / "three" / one for one in "abc"])
    expect(lie("three") == ["a/rank-0.device-0.state", "b/rank-0.device-1.state", "c/rank-1.device-0.state"], f"{lie('three')}")
