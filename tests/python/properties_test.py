"""What PyTorch's own tests expect of its optimizers and schedulers, of nearstep's: options, wrong arguments and schedulers are those that
the installed PyTorch ships for such tests, and the results are compared with its own optimizers'. Whatever does not apply is in LACKS and
DIFFERS with its reason, and raises. Prints how many cases hold. One process, one rank."""
import collections
import contextlib
import copy
import inspect
import io
import itertools
import pickle
import warnings

import launcher
from package import Package

import torch
from torch.optim import lr_scheduler as schedulers

import nearstep

try:
    from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db
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
# The same numbers in other ways: allowed in a parameter group, as groups of PyTorch's own optimizers have them.
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
    lambda opt: schedulers.OneCycleLR(opt, 0.05, total_steps=12, cycle_momentum=not opt.defaults.keys().isdisjoint({"betas", "momentum"})),
    lambda opt: schedulers.CyclicLR(opt, 1e-3, 1e-2, 2, cycle_momentum=False),
    lambda opt: schedulers.SequentialLR(opt, [schedulers.ConstantLR(opt), schedulers.ExponentialLR(opt, 0.9)], [3]),
]

held: collections.Counter = collections.Counter()
unlike: collections.Counter = collections.Counter()


def tearDownModule():
    print(f"\n{sum(held.values())} cases of {len(held)} properties that PyTorch {torch.__version__}'s own tests expect of optimizers hold:")
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
    """Settings that PyTorch ships, fresh ones, since schedulers write into tensors."""
    return [(one.desc, dict(one.kwargs)) for one in info.optim_inputs_func(device="cpu")]


def inputs():
    """Those that nearstep takes, too."""
    return [(info, desc, settings) for info in INFOS for desc, settings in every_input(info) if not lacking(info, settings)]


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


class Properties(Package):
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
        opt = ours(info)(params, **copy.deepcopy(settings or {}), path=self.folder / str(next(self.numbers)), devices=1, durability="none")
        self.opened.append(opt)
        return opt

    numbers = itertools.count()

    def equal(self, a, b, **tolerance):
        torch.testing.assert_close(a, b, **(tolerance or {"rtol": 1e-4, "atol": 1e-6}))

    def descend(self, info, settings, make_schedulers=(), contiguous=True, groups=lambda line: line.params, theirs=None, **tolerance):
        """Both optimizers with the same schedulers; ``theirs``: other settings for PyTorch's."""
        lines = Line(contiguous), Line(contiguous)
        opts = info.optim_cls(groups(lines[0]), **copy.deepcopy(settings if theirs is None else theirs)), self.opt(info, groups(lines[1]), settings)
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

    # --- Options and wrong arguments ---

    def test_pytorch_ships_cases_of_each_optimizer(self):
        self.assertEqual({info.name for info in INFOS}, {"Adagrad", "Adam", "AdamW", "SGD"})  # PyTorch has no Lion
        self.assertEqual({info.name for info, _, _ in inputs()}, {info.name for info in INFOS})
        self.assertTrue(all(info.scheduler_inputs and info.optim_error_inputs_func(device="cpu", dtype=torch.float32) for info in INFOS))

    def test_options_that_nearstep_lacks(self):
        known = {name for info in INFOS for name in inspect.signature(info.optim_cls).parameters}
        self.assertEqual(LACKS.keys() - known, set(), "no optimizer of PyTorch's has it any more")
        for info in INFOS:
            shipped = [(name, settings) for _, settings in every_input(info) for name in lacking(info, settings)]
            shipped += [(name, {name: True}) for name in ("capturable", *info.supported_impls) if name in inspect.signature(info.optim_cls).parameters]
            for name, settings in shipped:
                with self.case(name, info.name, settings, of=unlike):
                    self.refuses(TypeError, name, lambda: ours(info)(Line().params, **{name: settings[name]}, path=self.path))
                    info.optim_cls([{"params": Line().params, name: settings[name]}])  # PyTorch's takes it in a group
                    if name not in ALIKE:
                        self.refuses(TypeError, name, lambda: ours(info)([{"params": Line().params, name: settings[name]}], path=self.path))
                        opt = self.opt(info, Line().params)
                        opt.param_groups[0][name] = settings[name]
                        self.refuses(TypeError, name, lambda: self.take_step(opt))
                        self.opt(info, [{"params": Line().params, "foreach": True, "name": "all", name: False}])  # as PyTorch's without it
        self.assertFalse(self.path.exists())

    def take_step(self, opt):
        for p in opt.param_groups[0]["params"]:
            p.grad = torch.ones_like(p)
        opt.step()

    def test_wrong_arguments(self):
        for info in INFOS:
            for error in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
                given = error.optimizer_error_input
                params, names = given.params if given.params is not None else Line().params, lacking(info, given.kwargs)
                if names:
                    with self.case(names[0], info.name, given.desc, of=unlike):
                        self.refuses(TypeError, names[0], lambda: ours(info)(params, **given.kwargs, path=self.path))
                elif "either both floats" in error.error_regex:
                    with self.case("betas that mix a number and a tensor", info.name, given.desc, of=unlike):
                        numbers = {**given.kwargs, "betas": tuple(map(float, given.kwargs["betas"]))}
                        self.descend(info, given.kwargs, theirs=numbers)
                elif issubclass(error.error_type, Warning):
                    with self.case("a mistake is a warning", info.name, given.desc), self.assertWarnsRegex(error.error_type, error.error_regex):
                        self.opt(info, params, given.kwargs)
                else:
                    with self.case("a mistake is an error of the same type", info.name, given.desc), self.assertRaises(error.error_type):
                        opt = self.opt(info, params, given.kwargs)
                        self.assertIs(error.error_on, OptimizerErrorEnum.STEP_ERROR, "no error when the optimizer is made")
                        opt.step()

    # --- The update ---

    def test_equal_to_pytorch_and_in_the_right_direction(self):
        for info, desc, settings in inputs():
            for contiguous in (True, False):
                with self.case(f"equal to PyTorch's, {'' if contiguous else 'not '}contiguous parameters", info.name, desc):
                    self.descend(info, settings, contiguous=contiguous)

    def test_a_rate_that_is_a_tensor(self):
        for info, desc, settings in inputs():
            for shape in ((), (1,)):
                with self.case("the rate is a tensor", info.name, desc, shape):
                    self.descend(info, {**settings, "lr": torch.full(shape, 1e-2)},)

    def test_parameter_groups(self):
        for info, desc, settings in inputs():
            with self.case("each group has its rate", info.name, desc):
                opts, lines, _ = self.descend(info, {"lr": 1e-28}, groups=lambda line: [{"params": [line.weight], "lr": 1e-3, **copy.deepcopy(settings)}, {"params": line.bias}])
                self.equal(lines[1].bias, Line().bias, rtol=0, atol=0)
            with self.case("each group has its weight decay", info.name, desc):
                self.descend(info, settings, groups=lambda line: [{"params": [line.weight], "weight_decay": 0.3}, {"params": [line.bias], "weight_decay": 0}])

    def test_gradients_that_are_absent_frozen_or_on_scalars(self):
        for info, desc, settings in inputs():
            for takes_module in (True, False):
                with self.case("absent and frozen gradients, scalars, and the state of each parameter", info.name, desc, takes_module):
                    self.compare_parts(info, settings, takes_module)

    def compare_parts(self, info, settings, takes_module):
        models, scalars = (network(), network()), (torch.tensor(0.5, requires_grad=True), torch.tensor(0.5, requires_grad=True))
        for model, scalar in zip(models, scalars):
            model.register_parameter("scale", torch.nn.Parameter(scalar.detach()))
        opts = info.optim_cls(models[0].parameters(), **copy.deepcopy(settings)), self.opt(info, models[1] if takes_module else models[1].parameters(), settings)
        for step in range(7):
            for model, opt in zip(models, opts):
                opt.zero_grad()
                model[2].requires_grad_(step not in (3, 4))
                if step != 2:
                    (model.scale * model(torch.arange(6.0).view(3, 2) / 10).sum()).backward()
                opt.step()
            for p, q in zip(*(model.parameters() for model in models)):
                self.equal(q, p)
        for p, q in zip(*(model.parameters() for model in models)):
            theirs, mine = opts[0].state.get(p, {}), opts[1].state[q]
            self.assertEqual(mine["step"], theirs.get("step", mine["step"]))
            self.equal(mine["master"], q.detach())
            for name, value in theirs.items():
                if value is not None and name != "step":
                    self.equal(mine[name], value)

    def test_steps_that_do_nothing(self):
        for info, desc, settings in inputs():
            with self.case("no step without gradients", info.name, desc):
                params = [torch.randn(2, 3) for _ in range(2)]
                before = copy.deepcopy(params)
                self.assertEqual(self.opt(info, params, settings).step(lambda: torch.tensor([1])), torch.tensor([1]))
                self.equal(params, before, rtol=0, atol=0)
            if not settings.get("weight_decay", 0) and info.name != "AdamW":
                with self.case("no step with gradients of zero", info.name, desc):
                    line = Line()
                    opt = self.opt(info, line.params, settings)
                    for p in line.params:
                        p.grad = torch.zeros_like(p)
                    opt.step(lambda: 1)
                    self.equal(line.params, Line().params, rtol=0, atol=0)

    def test_two_formats(self):
        for info, desc, settings in inputs():
            with self.case("parameters of two formats", info.name, desc):
                lines = [[Line(), Line(dtype=torch.bfloat16)] for _ in range(2)]
                params = [[*a.params, *b.params] for a, b in lines]
                opts = info.optim_cls(params[0], **copy.deepcopy(settings)), self.opt(info, params[1], settings)
                for _ in range(3):
                    for opt, (a, b) in zip(opts, lines):
                        opt.zero_grad()
                        (a.loss() + b.loss()).backward()
                        opt.step()
                for p, q in zip(*params):
                    self.equal(q, p, **({"rtol": 2e-2, "atol": 2e-2} if p.dtype == torch.bfloat16 else {}))

    def test_a_closure(self):
        for info, desc, settings in inputs():
            with self.case("step() calls its closure once, with gradients, and returns the result", info.name, desc):
                line, calls = Line(), []
                opt = self.opt(info, line.params, settings)

                def closure():
                    calls.append(torch.is_grad_enabled())
                    line.closure(opt)()
                    return "the result"

                self.assertEqual((opt.step(closure), calls, opt.steps), ("the result", [True], 1))

    def test_printed(self):
        for info, desc, settings in inputs():
            with self.case("its text shows each option of each group", info.name, desc):
                opt = self.opt(info, Line().params, settings)
                self.assertEqual(repr(opt).split("(", 1)[0].strip(), info.name)
                for name, value in opt.param_groups[0].items():
                    self.assertTrue(name == "params" or f"{name}: {value}" in repr(opt), name)

    # --- Schedulers ---

    def test_schedulers(self):
        for info, desc, settings in inputs():
            for number, makers in enumerate(info.scheduler_inputs):
                with self.case("schedulers change the rate as PyTorch's", info.name, desc, number), warnings.catch_warnings():
                    warnings.simplefilter("error")  # none is right here
                    self.descend(info, settings, makers)
        for info in INFOS:
            for number, makers in enumerate(info.scheduler_inputs):
                with self.case("schedulers change the rates of groups", info.name, number):
                    self.descend(info, {}, makers, groups=lambda line: [{"params": [line.weight]}, {"params": [line.bias], "lr": 0.01}])
            for number, maker in enumerate(OTHERS):
                with self.case("other schedulers", info.name, number):
                    self.descend(info, {"momentum": 0.9} if info.name == "SGD" else {}, [maker])

    def test_the_state_of_schedulers(self):
        for info in INFOS:
            for number, makers in enumerate([*info.scheduler_inputs, *([maker] for maker in OTHERS[:5])]):
                with self.case("schedulers go on from their state_dict()", info.name, number):
                    opts, lines, each = self.descend(info, {}, makers)
                    kept = [pickle.loads(pickle.dumps(one.state_dict())) for one in each[1]]
                    line = Line()
                    again = self.opt(info, line.params)
                    mine = [make(again) for make in makers]
                    opts[1].save()
                    again.load_state_dict(opts[1].state_dict())
                    for one, state in zip(mine, kept):
                        one.load_state_dict(state)
                    for _ in range(STEPS):
                        loss = [opt.step(a.closure(opt)) for opt, a in ((opts[0], lines[0]), (again, line))]
                        advance(each[0], loss[0])
                        advance(mine, loss[1])
                        self.equal(rates(again), rates(opts[0]), rtol=1e-6, atol=0)
                    self.equal(line.params, lines[0].params)

    def test_a_scheduler_before_the_optimizer(self):
        for info in INFOS:
            with self.case("a scheduler's step before the optimizer's is a warning", info.name):
                scheduler = schedulers.ExponentialLR(self.opt(info, Line().params), 0.9)
                with self.assertWarnsRegex(UserWarning, "before `optimizer.step"):
                    scheduler.step()

    # --- state_dict() ---

    def test_state_dict_leads_another_optimizer_to_the_same_step(self):
        for info, desc, settings in inputs():
            for names in ((False, False), (False, True), (True, False), (True, True)):
                with self.case("state_dict() is deterministic, and another optimizer goes on from it", info.name, desc, names):
                    self.go_on(info, settings, *names)

    def go_on(self, info, settings, *are_named):
        def named(line, is_named):
            return [(f"name{i}", p) for i, p in enumerate(line.params)] if is_named else line.params

        lines = Line(), Line()
        opt = self.opt(info, named(lines[0], are_named[0]), settings)
        for _ in range(3):
            opt.step(lines[0].closure(opt))
        state = opt.state_dict()
        file = io.BytesIO()
        torch.save(state, file)
        for weights_only in (False, True):
            file.seek(0)
            loaded = torch.load(file, weights_only=weights_only)
            self.assertEqual(loaded, state)
        for group in loaded["param_groups"]:  # as in older files
            group.pop("foreach", None)
        other = self.opt(info, named(lines[1], are_named[1]), settings)
        kept = copy.deepcopy(loaded)
        other.load_state_dict(loaded)
        self.assertEqual(loaded, kept)
        self.equal(lines[1].params, lines[0].params, rtol=0, atol=0)
        for _ in range(3):
            for one, line in zip((opt, other), lines):
                one.step(line.closure(one))
        self.equal(lines[1].params, lines[0].params, rtol=0, atol=0)
        self.assertEqual(other.masters_digest(), opt.masters_digest())
        plain = [one.state_dict() for one in (opt, other)]
        for one in plain:
            del one["nearstep"]
            for group in one["param_groups"]:
                names = group.pop("param_names", None)
                self.assertTrue(names is None or names == ["name0", "name1"])
        self.assertEqual(*plain)

    def test_the_state_is_not_empty(self):
        for info, desc, settings in inputs():
            with self.case("opt.state has entries", info.name, desc):
                line = Line()
                opt = self.opt(info, line.params, settings)
                opt.step(line.closure(opt))
                self.assertEqual(len(opt.state), 2)
                self.assertTrue(all("step" in state and "master" in state for state in opt.state.values()))

    # --- Hooks ---

    def test_hooks_of_state_dict(self):
        for info, desc, settings in inputs():
            with self.case("hooks of state_dict() see and change all of it", info.name, desc):
                line = Line()
                opt = self.opt(info, line.params, settings)
                opt.step(line.closure(opt))
                opt.register_state_dict_pre_hook(lambda opt: opt.param_groups[0].update(note="before"))

                def after(opt, state):
                    self.assertEqual(pickle.loads(pickle.dumps(state))["nearstep"]["step"], 1)
                    state["state"].clear()
                    return {"ours": state, "note": state["param_groups"][0]["note"]}

                handle = opt.register_state_dict_post_hook(after)
                wrapped = opt.state_dict()
                self.assertEqual((wrapped.keys(), wrapped["note"], wrapped["ours"]["state"]), ({"ours", "note"}, "before", {}))
                handle.remove()
                self.assertEqual(opt.state_dict()["state"].keys(), {0, 1})

    def test_hooks_of_load_state_dict(self):
        for info, desc, settings in inputs():
            with self.case("hooks of load_state_dict() come before and after all of it", info.name, desc):
                lines, seen = (Line(), Line()), []
                opt = self.opt(info, lines[0].params, settings)
                opt.step(lines[0].closure(opt))
                opt.save()
                other = self.opt(info, lines[1].params, settings)

                def rate(value):
                    def change(opt, state):
                        seen.append(value)
                        state = state.get("ours", state)
                        return {**state, "param_groups": [{**group, "lr": value} for group in state["param_groups"]]}

                    return change

                other.register_load_state_dict_pre_hook(rate(0.002))
                other.register_load_state_dict_pre_hook(rate(0.003), prepend=True)
                other.register_load_state_dict_post_hook(lambda one: seen.append((one.steps, one.has_begun, lines[1].weight.equal(lines[0].weight))))
                other.load_state_dict({"ours": opt.state_dict()})
                self.assertEqual((rates(other), seen), ([0.002], [0.003, 0.002, (1, True, True)]))

    def test_hooks_of_step(self):
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        for info, desc, settings in inputs():
            for is_trained in (True, False):
                with self.case("hooks of step() run in order until they are removed", info.name, desc, is_trained):
                    line, data = Line(), []
                    for p in line.params:
                        p.requires_grad_(is_trained)
                    opt = self.opt(info, line.params, settings)
                    handles = [register_optimizer_step_pre_hook(lambda *_: data.append(0)), register_optimizer_step_post_hook(lambda *_: data.append(5)),
                               opt.register_step_pre_hook(lambda *_: data.append(1)), opt.register_step_post_hook(lambda *_: data.append(2))]
                    for wanted in ([0, 1, 2, 5], [0, 1, 2, 5] * 2):
                        if is_trained:
                            line.closure(opt)()
                        opt.step()
                        self.assertEqual(data, wanted)
                    for handle in handles:
                        handle.remove()
                    opt.zero_grad()
                    opt.step()
                    self.assertEqual(data, [0, 1, 2, 5] * 2)

    # --- What does not apply ---

    def test_what_does_not_apply_raises(self):
        for info in INFOS:
            def refuse(name, kind, words, work):
                with self.case(name, info.name, of=unlike):
                    self.refuses(kind, words, work)

            for dtype in (torch.complex64, torch.float64):
                refuse("complex and float64 parameters", ValueError, str(dtype), lambda: self.opt(info, [torch.nn.Parameter(torch.ones(3, dtype=dtype))]))
            embedding = torch.nn.Embedding(9, 4, sparse=True)
            opt = self.opt(info, embedding.parameters())
            refuse("sparse gradients", ValueError, "sparse", lambda: embedding(torch.tensor([1, 2])).sum().backward())
            embedding.weight.grad = torch.ones(9, 4).to_sparse()
            refuse("sparse gradients", ValueError, "sparse", self.opt(info, embedding.parameters()).step)
            line = Line()
            opt = self.opt(info, line.params)
            for _ in range(2):  # before and after the first step
                refuse("deepcopy and pickle", TypeError, "cannot be copied", lambda: copy.deepcopy(opt))
                refuse("deepcopy and pickle", TypeError, "cannot be pickled", lambda: pickle.dumps(opt))
                refuse("add_param_group() later", RuntimeError, "all parameter groups", lambda: opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]}))
                refuse("entries of one's own in opt.state", RuntimeError, "in storage", lambda: opt.state.update(test=1))
                refuse("entries of one's own in opt.state", RuntimeError, "in storage", lambda: opt.state.__setitem__("test", 1))
                refuse("a state of torch.optim's", ValueError, "another optimizer", lambda: opt.load_state_dict(info.optim_cls(Line().params).state_dict()))
                opt.step(line.closure(opt))


if __name__ == "__main__":
    launcher.main()
