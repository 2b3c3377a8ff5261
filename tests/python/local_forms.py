"""The models of local_worker.py, and the forms in which PyTorch divides them over ranks."""

import os

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

DEVICE = os.environ.get("NEARSTEP_TEST_DEVICE", "cpu")
BACKEND = {"cpu": "gloo", "cuda": "nccl"}[DEVICE]
WIDTH, ROWS = 184, 8  # a layer is a block of the optimizer's
CLIP = 0.4
EPS = 1e-3  # larger than usual, where gradients of bf16 or all elements are compared: see Reference


class Net(torch.nn.Module):
    """Layers of odd sizes, so that shards are uneven, and a scale of one element, so that some are empty."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH - 2), torch.nn.GELU(), torch.nn.Linear(WIDTH - 2, WIDTH))
            for _ in range(3)
        )
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, 5)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += 1
        for layer in self.layers:
            x = x + layer(x)
        return self.head(self.norm(x)) * self.scale


class Experts(torch.nn.Module):
    """Matrices of which each rank of a mesh has some; the ranks have the same rows."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.matrices = torch.nn.Parameter(torch.randn(4, WIDTH, WIDTH) / WIDTH)

    def forward(self, x):
        w = self.matrices
        if not hasattr(w, "device_mesh"):
            return torch.matmul(x, w).sum(0)
        rows = DTensor.from_local(x, w.device_mesh, [Replicate()])
        return torch.bmm(rows.unsqueeze(0).expand(w.shape[0], -1, -1), w).sum(0).full_tensor()


class Mixture(Net):
    def __init__(self):
        super().__init__()
        self.experts = Experts()

    def forward(self, x):
        return super().forward(x + self.experts(x))


def made(form=""):
    return (Mixture() if form == "experts" else Net()).to(DEVICE)


def loss_of(model, step, share=0, shares=1):
    both = torch.randn(2, ROWS, WIDTH, generator=torch.Generator().manual_seed(step)).to(DEVICE)
    x, y = both.chunk(shares, 1)[share]
    return (model(x) - y[:, :5]).square().mean()


# --- Forms: each takes the model and the number of ranks, and returns the model and the shares of a batch ---


def plain(model, ranks):
    return model, ranks


def ddp(model, ranks):
    return torch.nn.parallel.DistributedDataParallel(model), ranks


def _shard(model, mesh, **settings):
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **settings)
    return fully_shard(model, mesh=mesh, **settings)


def mesh_of(*shape, names=None):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(DEVICE, shape, mesh_dim_names=names)


def fsdp(model, ranks, **settings):
    return _shard(model, mesh_of(ranks), **settings), ranks


def offloaded(model, ranks):
    from torch.distributed.fsdp import CPUOffloadPolicy

    return fsdp(model, ranks, offload_policy=CPUOffloadPolicy(pin_memory=False), reshard_after_forward=False)


def from_meta(model, ranks):
    """Parameters get memory and values after fully_shard()."""
    with torch.device("meta"):
        empty = Net()
    _shard(empty, mesh_of(ranks))
    empty.to_empty(device=DEVICE)
    for p, value in zip(empty.parameters(), model.parameters()):
        p.data.copy_(distribute_tensor(value.detach(), p.device_mesh, p.placements))
    empty.seen.zero_()
    return empty, ranks


def hsdp(model, ranks):
    return _shard(model, mesh_of(2, ranks // 2, names=("copies", "shards"))), ranks


def _parallel(model, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for layer in model.layers:
        parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def tensor_parallel(model, ranks):
    _parallel(model, mesh_of(ranks))
    return model, 1


def tensor_parallel_in_shards(model, ranks):
    mesh = mesh_of(2, ranks // 2, names=("data", "tensor"))
    _parallel(model, mesh["tensor"])
    return _shard(model, mesh["data"]), 2


def experts(model, ranks):
    """Divides the experts over a mesh of their own, and the copies of each over the rest of the ranks."""
    from torch.distributed.fsdp import fully_shard

    mesh = mesh_of(ranks // 2, 2, names=("copies", "experts"))
    of = model.experts
    of.matrices = torch.nn.Parameter(distribute_tensor(of.matrices.detach(), mesh["experts"], [Shard(0)]))
    fully_shard(of, mesh=mesh["copies"])
    return _shard(model, mesh_of(ranks)), ranks // 2


def mixed(model, ranks):
    """fp32 shards, computed with in bf16, and gathered once more in backward from fewer ranks."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp(model, ranks, mp_policy=policy, reshard_after_forward=2 if ranks == 4 else True)


def recomputed(model, ranks):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for i, layer in enumerate(model.layers):
        model.layers[i] = checkpoint_wrapper(layer)
    return fsdp(model, ranks)


def compiled(model, ranks):
    for layer in model.layers:
        layer.compile(backend="aot_eager")
    return fsdp(model, ranks)


def replicated(model, ranks):
    """A copy of the head on each rank, as a DTensor; the rest as plain parameters."""
    mesh = mesh_of(ranks)
    distribute_module(
        model.head,
        mesh,
        input_fn=lambda _, given, mesh: tuple(DTensor.from_local(x, mesh, [Replicate()]) for x in given),
        output_fn=lambda _, made, __: made.to_local(),
    )
    return model, 1


def own_clipping(model, ranks):
    return fsdp(model, ranks)


def accumulated(model, ranks):
    return fsdp(model, ranks)


FORMS = {
    form.__name__: form
    for form in (
        plain,
        ddp,
        fsdp,
        offloaded,
        from_meta,
        hsdp,
        tensor_parallel,
        tensor_parallel_in_shards,
        own_clipping,
        accumulated,
        experts,
        mixed,
        recomputed,
        compiled,
        replicated,
    )
}
