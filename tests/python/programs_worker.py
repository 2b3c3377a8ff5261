"""Runs programs of examples/ on two ranks that find each other by torch.distributed, forks of this process: with
torch.optim.AdamW in place of nearstep's, with nearstep, and with a kill and a second start, on two ranks and on one.

    programs_worker.py FOLDER STEPS PROGRAM...        a program: "file words..."

Prints for each by how much the parameters differ from those of torch.optim.AdamW at most, whether the run that was
killed ends with the bits of the one that was not, and the steps that it took after its second start; then the
difference of the one that went on on one rank, and its steps. fsdp_titan.py runs on meshes of four ranks: see Titan.
"""

import functools
import os
import pathlib
import runpy
import shutil
import signal
import socket
import sys
import unittest.mock

import accelerate
import fsdp_on_cpu  # noqa: F401
import torch
import torch.multiprocessing

import nearstep
from nearstep._session import Session

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
EPS = 1e-3  # gradients that are zero but for rounding, as of an attention's key bias, move nothing


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()


class InMemory(torch.optim.AdamW):
    """torch.optim.AdamW with what the programs call of nearstep's."""

    steps = rank = 0
    has_begun = False

    def __init__(self, params, *, path, clip_norm=None, keep_random=False, **settings):
        super().__init__(params, **settings)
        self.clip_norm = clip_norm

    def step(self, closure=None):
        if self.clip_norm:
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            norm = sum(whole(gradient).square().sum() for gradient in gradients) ** 0.5
            torch._foreach_mul_([one.to_local() for one in gradients], min(1.0, float(self.clip_norm / norm)))
        return super().step(closure)

    def resume(self):
        return 0

    def masters_digest(self):
        return 0


class Program:
    def __init__(self, folder, steps, words):
        self.folder, self.steps, self.words = folder, steps, words

    def run(self, rank, ranks, port, name, kill_at, words):
        """Runs the program on this rank. Rank 0 ends itself in its step of the number ``kill_at``, in which it has met
        the others."""
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ.update({key: str(value) for key, value in place.items()}, MASTER_ADDR="127.0.0.1")
        os.environ["STEPS"] = str(self.steps)
        accelerate.state.AcceleratorState._reset_state(True)  # imports may have made one of a single rank
        taken, end_step, patch = [], Session.end_step, unittest.mock.patch.object

        def end(session):
            taken.append(None)
            if rank == 0 and len(taken) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            return end_step(session)

        optimizer = functools.partial(InMemory if name == "theirs" else nearstep.AdamW, eps=EPS)
        program = self.words[0]
        sys.argv = [program, str(self.folder / name), *(words or self.words[1:])]
        with (
            patch(Session, "end_step", end),
            patch(nearstep, "AdamW", optimizer),
            patch(torch.distributed, "destroy_process_group", lambda: None),
        ):
            found = runpy.run_path(str(EXAMPLES / program), run_name="__main__")
        values = [whole(p) for p in found.get("module", found.get("model")).parameters()]
        if rank == 0:
            torch.save((len(taken), values), self.folder / f"{name}.pt")

    def start(self, name, ranks=2, kill_at=0, *words):
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        torch.multiprocessing.start_processes(
            self.run, (ranks, port, name, kill_at, words), nprocs=ranks, start_method="fork"
        )
        return torch.load(self.folder / f"{name}.pt")

    def kill(self, *where, **named):
        try:
            self.start(*where, **named)
            raise AssertionError("the rank that kills itself lives")
        except torch.multiprocessing.ProcessExitedException:
            pass

    def check(self):
        self.folder.mkdir(parents=True)
        _, theirs = self.start("theirs")
        _, once = self.start("once")
        self.kill("killed", kill_at=self.steps - 1)
        shutil.copytree(self.folder / "killed", self.folder / "alone")
        taken, killed = self.start("killed")
        alone_taken, alone = self.start("alone", ranks=1)
        worst, of_alone = (difference(theirs, ours) for ours in (once, alone))
        is_same = all(torch.equal(p, q) for p, q in zip(once, killed, strict=True))
        print("\nfound", worst, is_same, taken, of_alone, alone_taken, " ".join(self.words), flush=True)


class Titan(Program):
    """Four ranks save a checkpoint of torch.distributed on a mesh of two dimensions. It goes on on another mesh, and so
    does the state, from one mesh that is killed to the next."""

    def check(self):
        self.folder.mkdir(parents=True)
        _, theirs = self.start("theirs", 4, 0, "2")
        steps, self.steps = self.steps, 2
        self.start("ours", 4, 0, "2")
        self.steps = steps
        self.kill("ours", 4, 2, "1")
        taken, ours = self.start("ours", 2, 0, "2")
        of_checkpoint, loaded = self.start("loaded", 2, 0, "2", str(self.folder / "ours/checkpoint-2"))
        print("\nmeshes", difference(theirs, ours), taken, difference(theirs, loaded), of_checkpoint, flush=True)


def difference(theirs, ours):
    return max((p - q).abs().max().item() for p, q in zip(theirs, ours, strict=True))


if __name__ == "__main__":
    _, folder, steps, *programs = sys.argv
    for number, program in enumerate(programs):
        kind = Titan if program == "fsdp_titan.py" else Program
        kind(pathlib.Path(folder) / str(number), int(steps), program.split()).check()
