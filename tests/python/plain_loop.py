"""The base of tests of what an ordinary PyTorch loop does: each trains a copy under torch.optim and compares. One
process, one rank; NEARSTEP_TEST_DEVICE=cuda: on a GPU."""

import launcher
from package import Package

import torch

import nearstep

WIDTH = 270  # a layer has more than one tile
DEVICE = launcher.DEVICE


def layers():
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Tanh(),
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()),
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH)),
    )


def network(seed=0):
    torch.manual_seed(seed)
    return layers().to(DEVICE)


def batch(step):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step)).to(DEVICE)


def backward(model, step):
    loss = (model(batch(step)) - 1).square().mean()
    loss.backward()
    return loss.detach()


def take_step(model, optimizer, step):
    loss = backward(model, step)
    optimizer.step()
    optimizer.zero_grad()
    return loss


class Loop(Package):
    def compare(
        self,
        loop=take_step,
        steps=6,
        rtol=1e-4,
        cls="SGD",
        lr=0.1,
        make=network,
        params=lambda model: model,
        **settings,
    ):
        """``loop(model, optimizer, step)`` returns what shall be equal: a value, or several."""
        theirs, ours = make().to(DEVICE), make().to(DEVICE)
        other = getattr(torch.optim, cls)(theirs.parameters(), lr=lr)
        _, opt = self.make(
            params(ours),
            getattr(nearstep, cls),
            lr=lr,
            path=self.folder / f"state-{len(self.opened)}",
            config={},
            **settings,
        )
        for step in range(steps):
            want, got = (loop(model, optimizer, step) for model, optimizer in ((theirs, other), (ours, opt)))
            for a, b in zip(*(one if isinstance(one, tuple) else (one,) for one in (want, got)), strict=True):
                torch.testing.assert_close(
                    torch.as_tensor(b).cpu(),
                    torch.as_tensor(a).cpu(),
                    rtol=rtol,
                    atol=1e-5,
                    msg=lambda text: f"step {step}: {text}",
                )
        for (name, p), q in zip(theirs.named_parameters(), ours.parameters()):
            torch.testing.assert_close(q, p, rtol=rtol, atol=1e-5, msg=lambda text: f"{name}: {text}")
        return ours, opt
