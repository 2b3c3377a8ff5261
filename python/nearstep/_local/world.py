"""The ranks of torch.distributed, and how they act together. Used by all of _local."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import weakref

import torch
import torch.distributed as dist


def all_gather(whole, mine, group=None) -> None:
    """The ranks' tensors one after the other. PyTorch has renamed this."""
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(whole, mine, group=group)


_at_work: weakref.WeakSet = weakref.WeakSet()  # Waits whose threads may use process groups


def await_before_destroying(waits) -> None:
    """A program may end its process groups right after step(), when ranks still bring each other values."""
    _at_work.add(waits)
    original = dist.destroy_process_group
    if hasattr(original, "_nearstep"):
        return

    @functools.wraps(original)
    def destroy(*arguments, **named):
        for one in list(_at_work):
            one.await_all()
        return original(*arguments, **named)

    destroy._nearstep = True
    dist.destroy_process_group = dist.distributed_c10d.destroy_process_group = destroy


def are_several() -> bool:
    """Whether torch.distributed runs with several ranks, or a launcher such as torchrun has said how it can start."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return (os.environ.get("WORLD_SIZE") or "1") != "1" and all(
        name in os.environ for name in ("RANK", "MASTER_ADDR", "MASTER_PORT")
    )


_on_host: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # a default group's beside it, for the host


def _backend_for(device_type: str) -> str | None:
    """Returns what a group for tensors of these devices needs; None: what the default group has."""
    return "gloo" if device_type == "cpu" and "cpu:" not in str(dist.get_backend_config()) else None


class World:
    """Starts torch.distributed if that is left to do. All ranks make the same calls in the same order. What they tell
    each other needs no GPU, so that none has to be chosen before the parameters have theirs."""

    def __init__(self):
        if are_several() and not dist.is_initialized():
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        self.is_several = are_several()
        if self.is_several and _backend_for("cpu") and dist.group.WORLD not in _on_host:
            _on_host[dist.group.WORLD] = dist.new_group(backend="gloo")
        self.rank, self.size = (dist.get_rank(), dist.get_world_size()) if self.is_several else (0, 1)
        self.beside = 1  # ranks of this host, when gather_with_hosts() has found them

    @classmethod
    def alone(cls) -> World:
        """Returns a world of this process alone, whatever others there are."""
        one = object.__new__(cls)
        one.is_several, one.rank, one.size, one.beside = False, 0, 1, 1
        return one

    @staticmethod
    def group(device=torch.device("cpu")):
        """Returns the group of all ranks that takes tensors of the device."""
        return _on_host[dist.group.WORLD] if _backend_for(device.type) else dist.group.WORLD

    def gather(self, numbers: list) -> list:
        """The numbers of all ranks, by rank; one small message of doubles."""
        if not self.is_several:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.float64)
        rows = torch.empty(self.size * len(numbers), dtype=torch.float64)
        all_gather(rows, mine, self.group())
        return rows.view(self.size, len(numbers)).tolist()

    def gather_objects(self, one) -> list:
        if not self.is_several:
            return [one]
        found: list = [None] * self.size
        dist.all_gather_object(found, one, group=self.group())
        return found

    def gather_with_hosts(self, one) -> list:
        """Does what gather_objects() does, and finds the ranks of this host by the way."""
        host = socket.gethostname()
        found = self.gather_objects((one, host))
        self.beside = sum(other == host for _, other in found)
        return [theirs for theirs, _ in found]

    def pass_on(self, tensor, source: int, targets: list) -> None:
        """A tensor on the host comes from one rank to others, in place. Ranks that are neither need not call it."""
        others = [rank for rank in targets if rank != source]
        if not others:
            return
        if self.rank != source:
            dist.recv(tensor, source, group=self.group())
            return
        for rank in others:
            dist.send(tensor, rank, group=self.group())

    def own_groups(self, wanted: set) -> dict:
        """Process groups in which nobody else acts, by what is wanted: tuples of a type of device and the ranks."""
        of_all = sorted({one for of_rank in self.gather_objects(sorted(wanted)) for one in of_rank})
        made = {(kind, ranks): dist.new_group(list(ranks), backend=_backend_for(kind)) for kind, ranks in of_all}
        return {one: made[one] for one in wanted}

    def refuse_shared_gpus(self, devices) -> None:
        """Raises ValueError if ranks have their parameters on the same GPU, where NCCL does not serve them."""
        mine = {}
        for device in devices:
            if device.type == "cuda" and "cuda:nccl" in str(dist.get_backend_config()):
                mine[str(getattr(torch.cuda.get_device_properties(device), "uuid", (self.rank, device)))] = device
        seen: dict = {}
        for rank, found in enumerate(self.gather_objects(mine)):
            for key, device in found.items():
                if seen.setdefault(key, rank) != rank:
                    raise of_all_ranks(
                        ValueError(
                            f"Ranks {seen[key]} and {rank} have their parameters on the same GPU ({device}): call "
                            'torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is made.'
                        )
                    )

    def together(self, work):
        """Returns the result of ``work`` on this rank. An exception on one rank is raised on all."""
        failure, result = None, None
        try:
            result = work()
        except Exception as error:
            if getattr(error, "is_of_all_ranks", False):
                raise
            failure = error
        said = self.gather_objects(None if failure is None else str(failure))
        if failure is None:
            text = next((f"Rank {rank}: {one}" for rank, one in enumerate(said) if one is not None), None)
            failure = None if text is None else RuntimeError(text)
        if failure is not None:
            failure.is_of_all_ranks = True
            raise failure
        return result


def leave_group(group) -> None:
    """The program may have ended it already."""
    with contextlib.suppress(ValueError, AssertionError, RuntimeError):
        dist.destroy_process_group(group)


def of_all_ranks(error: Exception) -> Exception:
    """The error, which all ranks raise alike: see World.together()."""
    error.is_of_all_ranks = True
    return error
