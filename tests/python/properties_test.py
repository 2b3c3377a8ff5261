"""Options, wrong arguments, updates and schedulers as PyTorch's own tests expect them: properties.py."""

import copy
import inspect
import pickle
import warnings

import launcher
from properties import (
    ALIKE,
    Cases,
    every_input,
    INFOS,
    inputs,
    lacking,
    LACKS,
    Line,
    network,
    OptimizerErrorEnum,
    OTHERS,
    ours,
    rates,  # noqa: F401
    schedulers,
    STEPS,
    advance,
    tearDownModule,
    unlike,
)

import torch


class Updates(Cases):
    # --- Options and wrong arguments ---

    def test_pytorch_ships_cases_of_each_optimizer(self):
        self.assertEqual({info.name for info in INFOS}, {"Adagrad", "Adam", "AdamW", "SGD"})  # PyTorch has no Lion
        self.assertEqual({info.name for info, _, _ in inputs()}, {info.name for info in INFOS})
        self.assertTrue(
            all(
                info.scheduler_inputs and info.optim_error_inputs_func(device="cpu", dtype=torch.float32)
                for info in INFOS
            )
        )

    def test_options_that_nearstep_lacks(self):
        known = {name for info in INFOS for name in inspect.signature(info.optim_cls).parameters}
        self.assertEqual(LACKS.keys() - known, set(), "no optimizer of PyTorch's has it any more")
        for info in INFOS:
            shipped = [(name, settings) for _, settings in every_input(info) for name in lacking(info, settings)]
            shipped += [
                (name, {name: True})
                for name in ("capturable", *info.supported_impls)
                if name in inspect.signature(info.optim_cls).parameters
            ]
            for name, settings in shipped:
                with self.case(name, info.name, settings, of=unlike):
                    self.refuses(
                        TypeError, name, lambda: ours(info)(Line().params, **{name: settings[name]}, path=self.path)
                    )
                    info.optim_cls([{"params": Line().params, name: settings[name]}])  # PyTorch's takes it in a group
                    if name not in ALIKE:
                        self.refuses(
                            TypeError,
                            name,
                            lambda: ours(info)([{"params": Line().params, name: settings[name]}], path=self.path),
                        )
                        opt = self.opt(info, Line().params)
                        opt.param_groups[0][name] = settings[name]
                        self.refuses(TypeError, name, lambda: self.take_step(opt))
                        self.opt(
                            info, [{"params": Line().params, "foreach": True, "name": "all", name: False}]
                        )  # as PyTorch's without it
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
                    with (
                        self.case("a mistake is a warning", info.name, given.desc),
                        self.assertWarnsRegex(error.error_type, error.error_regex),
                    ):
                        self.opt(info, params, given.kwargs)
                else:
                    with (
                        self.case("a mistake is an error of the same type", info.name, given.desc),
                        self.assertRaises(error.error_type),
                    ):
                        opt = self.opt(info, params, given.kwargs)
                        self.assertIs(
                            error.error_on, OptimizerErrorEnum.STEP_ERROR, "no error when the optimizer is made"
                        )
                        opt.step()

    # --- The update ---

    def test_equal_to_pytorch_and_in_the_right_direction(self):
        for info, desc, settings in inputs():
            for contiguous in (True, False):
                with self.case(
                    f"equal to PyTorch's, {'' if contiguous else 'not '}contiguous parameters", info.name, desc
                ):
                    self.descend(info, settings, contiguous=contiguous)

    def test_a_rate_that_is_a_tensor(self):
        for info, desc, settings in inputs():
            for shape in ((), (1,)):
                with self.case("the rate is a tensor", info.name, desc, shape):
                    self.descend(info, {**settings, "lr": torch.full(shape, 1e-2)})

    def test_parameter_groups(self):
        for info, desc, settings in inputs():
            with self.case("each group has its rate", info.name, desc):
                opts, lines, _ = self.descend(
                    info,
                    {"lr": 1e-28},
                    groups=lambda line: [
                        {"params": [line.weight], "lr": 1e-3, **copy.deepcopy(settings)},
                        {"params": line.bias},
                    ],
                )
                self.equal(lines[1].bias, Line().bias, rtol=0, atol=0)
            with self.case("each group has its weight decay", info.name, desc):
                self.descend(
                    info,
                    settings,
                    groups=lambda line: [
                        {"params": [line.weight], "weight_decay": 0.3},
                        {"params": [line.bias], "weight_decay": 0},
                    ],
                )

    def test_gradients_that_are_absent_frozen_or_on_scalars(self):
        for info, desc, settings in inputs():
            for takes_module in (True, False):
                with self.case(
                    "absent and frozen gradients, scalars, and the state of each parameter",
                    info.name,
                    desc,
                    takes_module,
                ):
                    self.compare_parts(info, settings, takes_module)

    def compare_parts(self, info, settings, takes_module):
        models, scalars = (
            (network(), network()),
            (torch.tensor(0.5, requires_grad=True), torch.tensor(0.5, requires_grad=True)),
        )
        for model, scalar in zip(models, scalars):
            model.register_parameter("scale", torch.nn.Parameter(scalar.detach()))
        opts = (
            info.optim_cls(models[0].parameters(), **copy.deepcopy(settings)),
            self.opt(info, models[1] if takes_module else models[1].parameters(), settings),
        )
        for step in range(7):
            for model, opt in zip(models, opts):
                opt.zero_grad()
                model[2].requires_grad_(step not in (3, 4))
                if step != 2:
                    (model.scale * model(torch.arange(6.0).view(3, 2) / 10).sum()).backward()
                opt.step()
            for p, q in zip(*(model.parameters() for model in models)):
                self.equal(q, p)
        self.assertEqual(
            [state["step"] for state in opts[1].state.values()],
            [opts[1].state[q]["step"] for q in models[1].parameters()],
        )
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
        for info in INFOS:
            with self.case("step() calls its closure once, with gradients, and returns the result", info.name):
                line, calls = Line(), []
                opt = self.opt(info, line.params)

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
            # Schedulers read and write the rate alone.
            for number, makers in enumerate(info.scheduler_inputs if settings.keys() <= {"lr"} else ()):
                with (
                    self.case("schedulers change the rate as PyTorch's", info.name, desc, number),
                    warnings.catch_warnings(),
                ):
                    warnings.simplefilter("error")  # none is right here
                    self.descend(info, settings, makers)
        for info in INFOS:
            for number, makers in enumerate(info.scheduler_inputs):
                with self.case("schedulers change the rates of groups", info.name, number):
                    self.descend(
                        info,
                        {},
                        makers,
                        groups=lambda line: [{"params": [line.weight]}, {"params": [line.bias], "lr": 0.01}],
                    )
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


if __name__ == "__main__":
    launcher.main()
