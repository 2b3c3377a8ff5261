"""Helps to test nearstep's optimizers for what PyTorch's own tests expect of its optimizers and schedulers: options,
wrong arguments and schedulers are those that the installed PyTorch ships for such tests, and the results are compared
with its own optimizers'. Whatever does not apply is in LACKS and DIFFERS with its reason, and raises. Prints how many
cases hold. One process, one rank."""

import collections
import contextlib
import copy
import inspect
import io
import itertools

import launcher
from package import Package

import torch
from torch.optim import lr_scheduler as schedulers

import nearstep

try:
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db  # noqa: F401
except ImportError as error:
    launcher.verdict.end_skipped(f"PyTorch {torch.__version__} ships no cases that load here ({error})")

# Options of PyTorch's optimizers that nearstep does not have: a TypeError, as an argument and in a parameter group.
LACKS = {
    "amsgrad": "a third moment, for which the state has no place",
    "capturable": "the update does not run in CUDA graphs",
    "dampening": "momentum is undamped",
    "differentiable": "no graph leads through the update",
    "foreach": "there is one implementation",
    "fused": "there is one implementation",
    "initial_accumulator_value": "the state begins with zeros",
    "lr_decay": "a scheduler changes the rate",
    "maximize": "the loss is to be negated",
    "nesterov": "momentum is Polyak's",
}
# Options that compute the same numbers in other ways: allowed in a parameter group, as groups of PyTorch's own
# optimizers have them.
ALIKE = ("capturable", "foreach", "fused")
# Properties that cannot hold, and the error instead.
DIFFERS = {
    "betas that mix a number and a tensor": "nearstep reads both as numbers, so that there is nothing to refuse",
    "complex and float64 parameters": "the engine trains fp32, bf16 and fp16: a ValueError",
    "sparse gradients": "gradients are sent as dense blocks: a ValueError",
    "deepcopy and pickle": "a state in storage has one owner: a TypeError",
    "add_param_group() later": "the state is laid out when the optimizer is made: a RuntimeError",
    "entries of one's own in opt.state": "the state lies in storage: a RuntimeError",
    "a state of torch.optim's": "the state in storage is not read from a dictionary: a ValueError",
}
STEPS = 6
OTHERS = [  # schedulers beside those that PyTorch ships for these tests
    lambda opt: schedulers.LambdaLR(opt, lambda step: 0.9**step),
    lambda opt: schedulers.MultiplicativeLR(opt, lambda step: 0.8),
    lambda opt: schedulers.MultiStepLR(opt, [2, 4], gamma=0.5),
    lambda opt: schedulers.CosineAnnealingLR(opt, 5),
    lambda opt: schedulers.CosineAnnealingWarmRestarts(opt, 2),
    lambda opt: schedulers.OneCycleLR(
        opt, 0.05, total_steps=12, cycle_momentum=not opt.defaults.keys().isdisjoint({"betas", "momentum"})
    ),
    lambda opt: schedulers.CyclicLR(opt, 1e-3, 1e-2, 2, cycle_momentum=False),
    lambda opt: schedulers.SequentialLR(opt, [schedulers.ConstantLR(opt), schedulers.ExponentialLR(opt, 0.9)], [3]),
]

held: collections.Counter = collections.Counter()
unlike: collections.Counter = collections.Counter()


def tearDownModule():
    print(
        f"\n{sum(held.values())} cases of {len(held)} properties that PyTorch {torch.__version__}'s own tests expect "
        "of optimizers hold:"
    )
    for name, count in sorted(held.items()):
        print(f"{count:5} {name}")
    print(f"{sum(unlike.values())} cases do not apply; that each does what is said here was checked:")
    for name, count in sorted(unlike.items()):
        print(f"{count:5} {name}: {LACKS.get(name) or DIFFERS.get(name) or 'an option that is newer than this list'}")


def ours(info):
    return getattr(nearstep, info.name)


INFOS = [info for info in optim_db if hasattr(nearstep, info.name)]


def lacking(info, settings):
    return sorted(settings.keys() - inspect.signature(ours(info)).parameters.keys())


def every_input(info):
    """Returns settings that PyTorch ships, new ones in each call, since schedulers write into tensors."""
    return [(one.desc, dict(one.kwargs)) for one in info.optim_inputs_func(device="cpu")]


def inputs():
    """Returns the settings of every_input() that nearstep takes, too."""
    return [
        (info, desc, settings) for info in INFOS for desc, settings in every_input(info) if not lacking(info, settings)
    ]


class Line:
    """A small regression, the same for both optimizers."""

    def __init__(self, contiguous=True, dtype=None):
        torch.manual_seed(1)
        weight, bias, self.input = torch.randn(10, 5, 2), torch.randn(10, 2), torch.randn(5)
        cut = (lambda t: t[..., 0].clone()) if contiguous else (lambda t: t[..., 0])
        self.weight, self.bias = (torch.nn.Parameter(cut(t).to(dtype or torch.float32)) for t in (weight, bias))
        self.params = [self.weight, self.bias]

    def loss(self):
        return (self.weight.mv(self.input.to(self.weight.dtype)) + self.bias).pow(2).sum()

    def closure(self, opt):
        def compute():
            opt.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        return compute


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sigmoid(), torch.nn.Linear(3, 1), torch.nn.Sigmoid())


def advance(each, loss):
    for one in each:
        one.step(loss.detach()) if isinstance(one, schedulers.ReduceLROnPlateau) else one.step()


def rates(opt):
    return [float(group["lr"]) for group in opt.param_groups]


class Cases(Package):
    def setUp(self):
        super().setUp()
        shown = contextlib.redirect_stderr(io.StringIO())  # a line of each optimizer
        shown.__enter__()
        self.addCleanup(shown.__exit__, None, None, None)

    @contextlib.contextmanager
    def case(self, name, *details, of=held):
        with self.subTest(name, details=details):
            yield
            of[name] += 1
        while of is held and self.opened:
            self.opened.pop().close()

    def opt(self, info, params, settings=None):
        opt = ours(info)(
            params,
            **copy.deepcopy(settings or {}),
            path=self.folder / str(next(self.numbers)),
            devices=1,
            durability="none",
        )
        self.opened.append(opt)
        return opt

    numbers = itertools.count()

    def equal(self, a, b, **tolerance):
        torch.testing.assert_close(a, b, **(tolerance or {"rtol": 1e-4, "atol": 1e-6}))

    def descend(
        self,
        info,
        settings,
        make_schedulers=(),
        contiguous=True,
        groups=lambda line: line.params,
        theirs=None,
        **tolerance,
    ):
        """Trains with both optimizers and the same schedulers. ``theirs``: other settings for PyTorch's."""
        lines = Line(contiguous), Line(contiguous)
        opts = (
            info.optim_cls(groups(lines[0]), **copy.deepcopy(settings if theirs is None else theirs)),
            self.opt(info, groups(lines[1]), settings),
        )
        each = [[make(opt) for make in make_schedulers] for opt in opts]
        first = lines[1].loss().item()
        for _ in range(STEPS):
            losses = [opt.step(line.closure(opt)) for opt, line in zip(opts, lines)]
            self.equal(losses[1], losses[0], rtol=1e-4, atol=1e-5)
            for opt, mine, loss in zip(opts, each, losses):
                advance(mine, loss)
            self.assertEqual(*([type(group["lr"]) for group in opt.param_groups] for opt in opts))
            self.equal(rates(opts[1]), rates(opts[0]), rtol=1e-6, atol=0)
            for p, q in zip(lines[0].params, lines[1].params):
                self.equal(q, p, **tolerance)
        self.assertLess(lines[1].loss().item(), first)
        return opts, lines, each
