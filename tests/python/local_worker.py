"""Trains on ranks that find each other by torch.distributed: forks of this process, with torchrun's variables.

    local_worker.py FOLDER RANKS FORM STEPS [KILL|save|from]

Prints the first step, the digest, and by how much the parameters differ from those of torch.optim.AdamW on one rank at
most. FORM: of local_forms.FORMS. KILL: RANK@STEP@WHERE; that rank kills itself in that step, before it meets the others
or when they have agreed. save: writes a checkpoint at the end; from: goes on from that one before, in place of the
state. NEARSTEP_TEST_DEVICE=cuda: on a GPU for each rank, by NCCL; else on the CPU, by gloo.
"""

import os
import pathlib
import signal
import socket
import sys
import time
import unittest.mock

import torch
import torch.distributed as dist

import nearstep
from local_forms import BACKEND, CLIP, DEVICE, EPS, FORMS, ddp, fsdp, hsdp, loss_of, made, mesh_of
from nearstep._local import optimizer as local
from nearstep._local import parts, waits


def _kill_when(kill, rank):
    if "@" not in kill or int(kill.split("@")[0]) != rank:
        return -1, ""
    return int(kill.split("@")[1]), kill.split("@")[2]


def _descend(model, opt, form, step, share, shares):
    if form == "accumulated":
        for part in range(2):
            model.set_requires_gradient_sync(part == 1)
            (loss_of(model, step, 2 * share + part, 2 * shares) / 2).backward()
    else:
        loss_of(model, step, share, shares).backward()
    if form == "own_clipping":
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)


def make_optimizer(model, folder, clip_norm=CLIP, eps=1e-8):
    return nearstep.AdamW(model, lr=1e-3, eps=eps, weight_decay=0.1, clip_norm=clip_norm, path=folder / "state")


def replaced(model, ranks, folder):
    """Does as Accelerate does: the optimizer is made before fully_shard(), and gets the new parameters in its
    groups."""
    opt = make_optimizer(list(model.parameters()), folder)
    fsdp(model, ranks)
    opt.param_groups[0]["params"] = list(model.parameters())
    return model, ranks, opt


def _eps_of(form):
    return EPS if form == "mixed" else 1e-8


class Reference:
    """Trains with torch.optim.AdamW: on this rank alone, or, where the form computes in bf16, on all.

    AdamW's first steps are of one length for gradients of any size, also for those that are nothing but rounding. So
    the parameters are compared where no gradient was smaller than a thousandth of its tensor's.
    """

    def __init__(self, form, rank, ranks):
        self.model, shares = made(form), 1
        if form == "mixed":
            self.model, shares = FORMS[form](self.model, ranks)
        self.share = (rank if shares > 1 else 0, shares)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, eps=_eps_of(form), weight_decay=0.1)
        self.least = [torch.full(p.shape, torch.inf, device=DEVICE) for p in self.model.parameters()]

    def step(self, step):
        loss_of(self.model, step, *self.share).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        for least, p in zip(self.least, self.model.parameters()):
            size = _whole(p.grad).abs()
            torch.minimum(least, size / size.square().mean().sqrt(), out=least)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def difference(self, model):
        """The largest one."""
        compared = [least > 1e-3 for least in self.least]
        share = sum(int(one.sum()) for one in compared) / sum(one.numel() for one in compared)
        expect(share > 0.95, f"{share} of the parameters are compared")
        pairs = zip(compared, model.parameters(), self.model.parameters())
        return max(((_whole(p) - _whole(q)) * where).abs().max().item() for where, p, q in pairs)


def _whole(tensor):
    there = tensor.detach().to(DEVICE)
    return there.full_tensor() if hasattr(there, "full_tensor") else there


def _local(p):
    return p.to_local() if hasattr(p, "to_local") else p


def _read_alone(model, rank, step):
    """One rank uses parameters between step() and the next forward, and the others wait for it."""
    if step % 2 and rank == 0:
        for p in list(model.parameters())[:: step + 1]:
            _local(p).sum()
    if step % 2:
        dist.barrier()


def _expect_overlap(model, is_expected):
    """Each layer's update is awaited when fully_shard() gathers the layer, and not before."""

    def before_forward(*_):
        expect(not is_expected or any(map(waits.is_awaited, model.layers[1].parameters())), "a layer waits for others")

    first = model.module if hasattr(model, "module") else model
    return first.layers[0].register_forward_pre_hook(before_forward)


def train(rank, folder, ranks, form, steps, kill):
    reference = Reference(form, rank, ranks)
    ours = made(form)
    model, shares, *optimizer = replaced(ours, ranks, folder) if form == "replaced" else FORMS[form](ours, ranks)
    share = rank // (ranks // shares)
    clip_norm = None if form == "own_clipping" else CLIP
    opt = optimizer[0] if optimizer else make_optimizer(model, folder, clip_norm, _eps_of(form))
    start = opt.resume((folder / "checkpoint").read_text() if kill == "from" else None)
    expect(kill != "from" or opt.extra == {"rows": start}, f"{opt.extra} rows")
    kill_at, where = _kill_when(kill, rank)
    for step in range(steps):
        reference.step(step)
        if step < start:
            continue
        overlap = _expect_overlap(model, form in ("fsdp", "replaced") and ranks > 1 and step % 2 and step > start)
        _descend(model, opt, form, step, share, shares)
        overlap.remove()
        if step == kill_at and where == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if step == kill_at:
            local.Part.take = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        held = [p for p in model.parameters() if _local(p).numel()]
        opt.step()
        opt.zero_grad()
        if dist.is_initialized() and ranks > 1:
            expect(all(map(waits.is_awaited, held)), "step() waits for the update")
            _read_alone(model, rank, step)
    worst = reference.difference(model)
    saved_at = opt.save(folder / "checkpoints", extra={"rows": steps}) if kill in ("save", "from") else ""
    if saved_at and rank == 0:
        (folder / "checkpoint").write_text(saved_at)
    digest, seen = opt.masters_digest(), int((model.module if form == "ddp" else model).seen)
    opt.close()
    if rank == 0:
        print(form, start, digest, worst, seen, flush=True)


def checkpointed(rank, folder, ranks):
    """Moments go out to torch.optim.AdamW and come in from it, by torch.distributed.checkpoint."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def make(form, kind, **settings):
        model, _ = form(made(), ranks)
        return model, kind(model if settings else model.parameters(), lr=1e-3, eps=EPS, weight_decay=0.1, **settings)

    def train(model, opt, steps):
        for step in steps:
            loss_of(model, step, rank, ranks).backward()
            opt.step()
            opt.zero_grad()

    worst, digest = 0.0, ""
    for turn in range(2):
        ours = make(hsdp if ranks > 2 else fsdp, nearstep.AdamW, path=folder / f"state-{turn}")
        both = [ours, make(fsdp, torch.optim.AdamW)]
        (source, theirs), (target, mine) = both if turn == 0 else reversed(both)
        train(source, theirs, range(3))
        model, state = get_state_dict(source, theirs)
        dcp.save({"model": model, "optimizer": state}, checkpoint_id=folder / f"checkpoint-{turn}")
        model, state = get_state_dict(target, mine)
        dcp.load({"model": model, "optimizer": state}, checkpoint_id=folder / f"checkpoint-{turn}")
        set_state_dict(target, mine, model_state_dict=model, optim_state_dict=state)
        train(source, theirs, range(3, 6))
        train(target, mine, range(3, 6))
        worst = max(
            worst,
            *(
                (p.full_tensor() - q.full_tensor()).abs().max().item()
                for p, q in zip(source.parameters(), target.parameters())
            ),
        )
        digest += str(ours[1].masters_digest())
        if ours[1].steps != 6:
            raise AssertionError(f"{ours[1].steps} steps")
        ours[1].close()
    if rank == 0:
        print("checkpointed", 0, digest, worst, 0, flush=True)


def saved(rank, folder, ranks):
    """A run goes back to its checkpoint, a step with a gradient that is infinite on one rank is none, and ranks that
    differ are refused."""

    def make(name):
        model, _ = ddp(made(), ranks)
        return model, nearstep.AdamW(model, lr=1e-2, path=folder / name)

    def train(model, opt, steps, spoilt=False):
        for step in steps:
            loss_of(model, step, rank, ranks).backward()
            if spoilt and rank == 1:
                model.module.head.bias.grad[0] = torch.inf
            opt.step()
            opt.zero_grad()
        return opt.masters_digest()

    model, opt = make("state")
    train(model, opt, range(1))
    opt.save(folder / "checkpoints")
    train(model, opt, range(1, 2))
    path = opt.save(folder / "checkpoints", extra={"rows": 16})
    dist.barrier()
    names = [one.name for one in (folder / "checkpoints").glob("*.ranks.json")]
    expect(names == [pathlib.Path(path).name], f"{names} are left of replaced checkpoints")
    shown = opt.state_dict()
    digest = train(model, opt, range(2, 4))
    expect(
        train(model, opt, [4], spoilt=True) == digest and opt.steps == 5, "a step that is not finite changes nothing"
    )
    opt.close()
    for name, go_back in (("other", lambda one: one.resume(path)), ("third", lambda one: one.load_state_dict(shown))):
        model, opt = make(name)
        go_back(opt)
        expect(opt.steps == 2 and opt.extra == {"rows": 16}, f"{opt.steps} steps, {opt.extra}")
        expect(train(model, opt, range(2, 4)) == digest, "it goes on from its checkpoint")
    bad = folder / "checkpoints/bad.ranks.json"
    if rank == 0:
        bad.write_text(pathlib.Path(path).read_text().replace('"rank-1-of-2/', '"../rank-1-of-2/'))
    dist.barrier()
    try:
        make("fourth")[1].resume(bad)
        raise AssertionError("a checkpoint outside its folder")
    except ValueError as error:
        expect("opt.save() returned" in str(error), str(error))
    opt.param_groups[0]["lr"] = 0.1 * (rank + 1)
    try:
        train(model, opt, [4])
        raise AssertionError("another learning rate on each rank")
    except RuntimeError as error:
        expect("learning rate" in str(error), str(error))
    if rank == 0:
        print("saved", 0, digest, 0, 0, flush=True)


def refused(rank, folder, ranks):
    """Checks that settings which do not go with ranks of PyTorch's end with a sentence that says what to use."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    def flat():
        return FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))

    def stage():
        return torch.nn.Linear(4, 4 + rank)

    def named_alike():
        from torch.distributed.fsdp import fully_shard

        torch.manual_seed(rank)
        return fully_shard(torch.nn.Linear(4, 4), mesh=mesh_of(ranks, 1, names=("stages", "shards"))["shards"])

    def averaged_by_some():
        groups = [dist.new_group([one]) for one in range(ranks)]
        return torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=groups[rank])

    def sharded_late(model, **settings):
        from torch.distributed.fsdp import fully_shard

        opt = nearstep.AdamW(model, **settings)
        opt.resume()
        fully_shard(model, mesh=mesh_of(ranks))(torch.ones(1, 4)).sum().backward()
        opt.step()

    def resumed(model, **settings):
        nearstep.AdamW(model, **settings).resume()

    def wrapped_late(model, keeps_parameters=True, **settings):
        inner = torch.nn.Sequential(model)
        opt = nearstep.AdamW(inner, **settings)
        inner[0] = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=keeps_parameters)
        opt.resume()

    for number, (words, make, use, settings) in enumerate(
        (
            (("FullyShardedDataParallel", "fully_shard()"), flat, nearstep.AdamW, {}),
            (("FullyShardedDataParallel", "fully_shard()"), lambda: torch.nn.Linear(4, 4), wrapped_late, {}),
            (("another tensor",), lambda: torch.nn.Linear(4, 4), wrapped_late, {"keeps_parameters": False}),
            (("stages", "fully_shard()"), stage, resumed, {}),
            (("different values", "whole model"), named_alike, resumed, {}),
            (("some of the ranks", "fully_shard()"), averaged_by_some, resumed, {}),
            (("before opt.resume()",), lambda: torch.nn.Linear(4, 4), sharded_late, {}),
            (("stream=", "CPUOffloadPolicy"), stage, nearstep.AdamW, {"stream": nearstep.Stream(slots=2)}),
            (("weights=", "checkpoint"), stage, nearstep.AdamW, {"weights": str(folder)}),
            (("gpu_memory_gb=", "PyTorch"), stage, nearstep.AdamW, {"gpu_memory_gb": 4}),
            (('clipping="delayed"', "step()"), stage, nearstep.AdamW, {"clipping": "delayed", "clip_norm": 1.0}),
        )
    ):
        try:
            use(make(), path=folder / f"refused-{number}", **settings)
        except (ValueError, RuntimeError) as error:
            expect(all(word in str(error) for word in words), str(error))
        else:
            raise AssertionError(words)
    if rank == 0:
        print("refused", 0, 0, 0, 0, flush=True)


def left(rank, folder, ranks):
    """A program ends its process groups while ranks bring each other new values, and never closes its optimizer."""
    model, reference = made(), Reference("ddp", rank, ranks)
    opt = make_optimizer(ddp(model, ranks)[0], folder)
    loss_of(model, 0).backward()
    reference.step(0)
    opt.resume()
    gather = parts.Bucket.gather
    parts.Bucket.gather = lambda *given: time.sleep(0.2) or gather(*given)
    opt.step()
    dist.destroy_process_group()
    if rank == 0:
        print("left", 0, 0, reference.difference(model), 0, flush=True)


def expect(is_true, what):
    if not is_true:
        raise AssertionError(what)


def hosts(rank, folder, ranks):
    """Ranks share the cores of the host on which they find each other, also if their launcher, as spawn() of
    torch.multiprocessing, names no number."""
    told = os.environ.pop("LOCAL_WORLD_SIZE")
    for name, beside in (("a", ranks), (f"b{rank}", 1)):
        opt = make_optimizer(ddp(made(), ranks)[0], folder / name[0])
        with unittest.mock.patch.object(socket, "gethostname", lambda: name):
            opt.resume()
        found = opt._own._session.processes_beside
        expect(found == beside, f"{found} ranks of the host {name}")
        opt.close()
    os.environ["LOCAL_WORLD_SIZE"] = told
    if rank == 0:
        print("hosts", 0, 0, 0, 0, flush=True)


_OTHERS = {form.__name__: form for form in (checkpointed, saved, refused, left, hosts)}


def use_gpu(rank):
    if DEVICE == "cuda":
        torch.cuda.set_device(rank)


def train_by_mpi(folder, form, steps, kill):
    rank, ranks = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    use_gpu(rank)
    train(rank, pathlib.Path(folder), ranks, form, int(steps), kill)


def main(folder, ranks, form, steps, kill=""):
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        train_by_mpi(folder, form, steps, kill)
        return
    ranks, processes = int(ranks), []
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    for rank in range(ranks):
        processes.append(os.fork())
        if processes[-1] == 0:
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(ranks),
                LOCAL_WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
            )
            use_gpu(rank)
            if ranks > 1 or form != "plain":
                dist.init_process_group(BACKEND)
            for one in filter(None, form.split(",")):
                if one in _OTHERS:
                    _OTHERS[one](rank, pathlib.Path(folder) / one, ranks)
                    continue
                train(rank, pathlib.Path(folder) / (one if "," in form else ""), ranks, one, int(steps), kill)
            if dist.is_initialized():
                dist.destroy_process_group()
            sys.exit(0)
    codes = []
    while processes:  # as torchrun does, ends the others when one has failed
        process, status = os.wait()
        processes.remove(process)
        codes.append(status)
        if status:
            for other in processes:
                os.kill(other, signal.SIGTERM)
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
