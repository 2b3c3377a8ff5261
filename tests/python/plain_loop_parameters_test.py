"""Tests that what an ordinary PyTorch loop does to parameters and modules has the same effect with nearstep, or raises
at that line."""

import copy
import io
import pickle

import launcher
from plain_loop import DEVICE, WIDTH, Loop, backward, batch, layers, network, take_step

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import nearstep
from nearstep._model.departed import ABOUT


class Parameters(Loop):
    def test_a_model_that_was_empty_is_written_swapped_and_dropped(self):
        for backward_passes in (None, 1):
            theirs = network()
            with nearstep.empty(DEVICE):
                ours = layers()
            _, opt = self.make(
                ours, nearstep.SGD, lr=0.1, path=self.folder / str(backward_passes), accumulation=backward_passes
            )
            opt.resume()
            ours.load_state_dict(theirs.state_dict())
            for model, optimizer in ((theirs, torch.optim.SGD(theirs.parameters(), lr=0.1)), (ours, opt)):
                for step in range(6):
                    backward(model, step)
                    if step % 3 == 2:
                        model.zero_grad()
                        continue
                    optimizer.step()
                    optimizer.zero_grad()
                    with torch.no_grad():
                        for p in model.parameters():
                            p.clamp_(-0.03, 0.03)
                    kept = [p.data.clone() for p in model.parameters()]
                    for p in model.parameters():
                        p.data = p.data * 0.5
                    for p, value in zip(model.parameters(), kept):
                        p.data = value
                    torch.autograd.grad(model(batch(step)).sum(), list(model.parameters()))
            for p, q in zip(theirs.parameters(), ours.parameters()):
                torch.testing.assert_close(q, p, rtol=1e-4, atol=1e-5)

    # --- Parameters that one writes and reads ---

    def test_parameters_that_are_written_between_steps(self):
        def average(model, step):
            trained = [p.detach().clone() for p in model.parameters()]
            for p in model.parameters():
                p.data.copy_(p.data * 0.9)
            with torch.no_grad():
                found = model(batch(step)).mean()
            for p, value in zip(model.parameters(), trained):
                p.data = value
            return found

        def renormalise(model, step):
            with torch.no_grad():
                model[0].weight.div_(model[0].weight.norm(dim=1, keepdim=True))

        def clamp(model, step):
            for p in model.parameters():
                p.data.clamp_(-0.03, 0.03)

        def evaluate_then_write(model, step):
            with torch.no_grad():
                model(batch(step))
                for p in model.parameters():
                    p.mul_(0.99)

        def load(model, step):
            if step == 2:
                model.load_state_dict(network(7).state_dict())

        def fill(model, step):
            vector = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
            torch.nn.utils.vector_to_parameters(vector * 0.98, model.parameters())

        def initialise(model, step):
            torch.nn.init.constant_(model[3][0].bias, 0.25)

        def set_(model, step):
            if step == 2:
                with torch.no_grad():
                    model[3][0].weight.set_(torch.full((WIDTH, WIDTH), 0.01, device=DEVICE))

        def swap(model, step):
            if step == 2:
                torch.utils.swap_tensors(
                    model[3][0].weight, torch.nn.Parameter(torch.full((WIDTH, WIDTH), 0.01, device=DEVICE))
                )

        for write in (average, renormalise, clamp, evaluate_then_write, load, fill, initialise, set_, swap):

            def loop(model, optimizer, step):
                loss = take_step(model, optimizer, step)
                seen = write(model, step)
                return (loss, *([] if seen is None else [seen]))

            for params in (lambda model: model, lambda model: model.parameters()):
                with self.subTest(write.__name__):
                    ours, opt = self.compare(loop, cls="Adam", lr=1e-3, params=params)
                    opt.save()
                    opt.close()

    def test_what_is_written_is_durable_and_only_that(self):
        model, opt = self.make(network().to(torch.bfloat16), state="fp32", config={"csd.subgroup_tiles": 1})
        digests = []
        for step in range(4):
            (model(batch(step).bfloat16()) - 1).square().mean().backward()
            opt.step()
            opt.zero_grad()
            digests.append(opt.masters_digest())
            with torch.no_grad():
                kept = [p.clone() for p in model.parameters()]
                for p, value in zip(model.parameters(), kept):
                    p.mul_(0.5)
                    p.copy_(value)
        self.assertEqual(opt.masters_digest(), digests[-1], "a swap and back keeps the masters' last bits")
        with torch.no_grad():
            model[0].bias.fill_(0.5)
        opt.close()
        model, opt = self.make(network().to(torch.bfloat16), state="fp32", config={"csd.subgroup_tiles": 1})
        self.assertEqual(opt.resume(), 4)
        self.assertTrue((model[0].bias == 0.5).all())
        master = opt.state[model[0].weight]["master"]
        self.assertTrue((master != master.bfloat16().float()).any(), "masters of others were not rounded")

    def test_parameters_that_are_read_are_those_of_the_last_step(self):
        reads = {
            "list": lambda model, held: [p.detach().clone() for p in held],
            "data": lambda model, held: [p.data.clone() for p in held],
            "named": lambda model, held: [p.detach().clone() for _, p in model.named_parameters()],
            "state_dict": lambda model, held: [p.clone() for p in model.state_dict().values()],
            "deepcopy": lambda model, held: list(copy.deepcopy(model).parameters()),
            "save": lambda model, held: list(torch.load(saved(model), weights_only=False).parameters()),
            "save_state": lambda model, held: list(torch.load(saved(model.state_dict()), weights_only=True).values()),
            "pickle_one": lambda model, held: [pickle.loads(pickle.dumps(p)) for p in held],
            "sum": lambda model, held: [p + 0 for p in held],
            "numpy": lambda model, held: [torch.from_numpy(p.detach().cpu().numpy().copy()) for p in held],
            "vector": lambda model, held: [torch.nn.utils.parameters_to_vector(held)],
            "foreach": lambda model, held: torch._foreach_mul(held, 1.0),
            "function": lambda model, held: [
                torch.func.functional_call(model, dict(model.named_parameters()), batch(0))
            ],
            "attribute": lambda model, held: [model[2][0].weight.t().contiguous()],
            "averaged": lambda model, held: list(torch.optim.swa_utils.AveragedModel(model).module.parameters()),
            "groups": lambda model, held: [p.detach().clone() for p in held],
            "type": lambda model, held: [p.type(torch.float64) for p in held],
            "parameter": lambda model, held: [torch.nn.Parameter(p) for p in held],
            "as_tensor": lambda model, held: [torch.as_tensor(p).clone() for p in held],
            "asarray": lambda model, held: [torch.asarray(p, requires_grad=True).clone() for p in held],
            "tensor": lambda model, held: [torch.tensor(p.detach().tolist()) for p in held],
            "dlpack": lambda model, held: [torch.from_dlpack(p.detach()).clone() for p in held],
            "storage": lambda model, held: [
                torch.empty(0, device=DEVICE).set_(p.untyped_storage(), p.storage_offset(), p.shape).clone()
                for p in held
            ],
        }

        def saved(value):
            file = io.BytesIO()
            torch.save(value, file)
            file.seek(0)
            return file

        for name, read in reads.items():
            held = {}

            def loop(model, optimizer, step):
                if id(model) not in held:
                    held[id(model)] = [p for group in optimizer.param_groups for p in group["params"]]
                loss = take_step(model, optimizer, step)
                return (loss, *(one.detach() for one in read(model, held[id(model)])))

            with self.subTest(name):
                self.compare(loop, steps=3)[1].close()

    def test_texts_have_the_values_of_the_last_step(self):
        model, opt = self.make(network(), nearstep.SGD, lr=0.1)
        for step, text in enumerate((repr, str, "{}".format)):
            take_step(model, opt, step)
            shown = [text(p) for p in model.parameters()]
            opt.synchronize()
            self.assertEqual(shown, [text(p) for p in model.parameters()])

    def test_modes_of_the_program_do_not_see_how_parameters_come(self):
        class Counted(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                calls.append(str(func))
                return func(*args, **(kwargs or {}))

        class CountedFunctions(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                if args and type(args[0]) is torch.Tensor and func not in ABOUT:
                    calls.append(func.__name__)
                return func(*args, **(kwargs or {}))

        def counted(mode):
            def use(model, x):
                calls.clear()
                with mode(), torch.no_grad():
                    y = model(x)
                return y, torch.tensor(len(calls))

            return use

        def described(model, x):  # other parameters come later
            with FakeTensorMode(allow_non_fake_inputs=True):
                model[3][0].weight + 0
            return (model[3][0].weight + 0).detach()

        calls = []
        uses = {
            "dispatch": counted(Counted),
            "function": counted(CountedFunctions),
            "trace": lambda model, x: torch.jit.trace(model, (x,))(x),
            "make_fx": lambda model, x: make_fx(model)(x)(x),
            "make_fx_of_a_parameter": lambda model, x: make_fx(lambda x: x * model[0].bias)(x)(x),
            "export": lambda model, x: torch.export.export(model, (x,)).module()(x),
            "fake": described,
        }
        for name, use in uses.items():

            def loop(model, optimizer, step):
                loss = take_step(model, optimizer, step)
                seen = use(model, batch(step))
                return (loss, *(one.detach() for one in (seen if isinstance(seen, tuple) else (seen,))))

            with self.subTest(name):
                self.compare(loop, steps=3)[1].close()

    def test_changes_that_would_be_lost_raise(self):
        model, opt = self.make(network(), nearstep.SGD)
        for step in range(2):
            take_step(model, opt, step)

        def goes_on():  # on a GPU it is found out while the next step goes on
            for step in range(1 if DEVICE == "cpu" else 3):
                take_step(model, opt, step)
                opt.finish()

        views = [p.data for p in model.parameters()]
        backward(model, 2)
        for p in model.parameters():
            p.data.mul_(0.9)  # when the gradients have left
        opt.step()
        opt.zero_grad()
        self.refuses(RuntimeError, ("0.weight", "keep_gradients=True"), goes_on)
        take_step(model, opt, 3)
        for view in views:
            view.zero_()  # a view from before the step
        if DEVICE == "cpu":  # on a GPU each parameter is said once
            self.refuses(RuntimeError, ("0.weight", "keep_gradients=True"), goes_on)

    def test_parameters_that_are_written_in_the_forward(self):
        class Embedded(torch.nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.table = torch.nn.Embedding(300, WIDTH, max_norm=1.0)
                self.rest = network(1)

            def forward(self, x):
                return self.rest(self.table(x))

        def loop(model, optimizer, step):
            loss = (model(torch.arange(step, 300, 7, device=DEVICE)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        self.compare(loop, make=Embedded)

    def test_parameters_of_a_module_whose_own_forward_is_never_called(self):
        def loop(model, optimizer, step):
            loss = (model[1](model[0](batch(step))) - 1).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            for p in model.parameters():
                p.data.clamp_(-0.03, 0.03)
            return loss

        self.compare(loop, make=lambda: torch.nn.ModuleList([network(1), network(2)]))

    def test_transforms_of_functions(self):
        def per_sample(model, step):
            loss = torch.func.grad(lambda params, x: (torch.func.functional_call(model, params, x) - 1).square().mean())
            return torch.func.vmap(loss, in_dims=(None, 0))(
                {name: p.detach() for name, p in model.named_parameters()}, batch(step)
            )["0.bias"]

        def gradient(of):
            return of(torch.ones(WIDTH, device=DEVICE, requires_grad=True))[0]

        def compiled(function):
            return torch.compile(function, backend="eager", fullgraph=True)

        self.addCleanup(torch._dynamo.reset)
        uses = {
            "grad": lambda model, step: torch.func.grad(lambda w: (w**3).sum())(model[0].weight),
            "captured": lambda model, step: torch.func.grad(lambda x: (x * model[0].weight).square().sum())(
                batch(step)[0]
            ),
            "vmap": lambda model, step: torch.func.vmap(lambda w: (w**3).sum())(model[0].weight),
            "jvp": lambda model, step: torch.func.jvp(
                lambda w: w.square().sum(), (model[0].weight,), (torch.ones_like(model[0].weight),)
            )[1],
            "jacrev": lambda model, step: torch.func.jacrev(lambda x: model(x).sum())(batch(step)[0]),
            "per_sample": per_sample,
            "functionalize": lambda model, step: torch.func.functionalize(lambda w: w.square())(model[0].weight),
            "vjp": lambda model, step: torch.func.vjp(lambda x: 2 * x, batch(step)[0])[1](model[0].bias)[0],
            "gradient_of_outputs": lambda model, step: gradient(
                lambda x: torch.autograd.grad(2 * x, x, grad_outputs=model[0].bias)
            ),
            "compiled_grad": lambda model, step: compiled(torch.func.grad(lambda w: (w**3).sum()))(batch(step)),
            "compiled_vmap": lambda model, step: compiled(torch.func.vmap(lambda w: (w**3).sum()))(batch(step)),
        }
        for name, use in uses.items():

            def loop(model, optimizer, step):
                first = use(model, step) if step == 0 else torch.zeros(())
                loss = take_step(model, optimizer, step)
                return first.detach(), loss.detach(), use(model, step).detach()

            with self.subTest(name):
                self.compare(loop, steps=3, rtol=1e-3)[1].close()

    def test_weight_decay_by_hand_with_kept_gradients(self):
        def loop(model, optimizer, step):
            loss = backward(model, step)
            for p in model.parameters():
                p.data.mul_(0.9)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        self.compare(loop, keep_gradients=True)

    def test_hooks_that_were_there_before(self):
        def with_hooks():
            model = network()
            torch.nn.utils.prune.l1_unstructured(model[0], "weight", 0.3)
            torch.nn.utils.weight_norm(model[2][0])
            torch.nn.utils.parametrizations.spectral_norm(model[3][0])
            return model

        import torch.nn.utils.prune  # noqa: F401

        self.compare(make=with_hooks, rtol=1e-3)

    def test_script_modules(self):
        self.compare(make=lambda: torch.nn.Sequential(torch.jit.script(network(1)), network(2)))
        self.compare(make=lambda: torch.jit.script(network()))
        self.compare(make=lambda: torch.jit.script(network()), params=lambda model: model.parameters())
        model, opt = self.make(network(), path=self.folder / "hooks")
        self.refuses(AttributeError, ("torch.jit.script()", "close()"), lambda: torch.jit.script(model))
        opt.close()
        torch.jit.script(model)

    def test_compiled_modules_are_not_compiled_again_in_each_step(self):
        for whole in (True, False):

            def make():
                model = network()
                if whole:
                    return torch.compile(model, backend="eager")
                for layer in model:
                    layer.compile(backend="eager")
                return model

            def loop(model, optimizer, step):
                loss = take_step(model, optimizer, step)
                if step == 2:
                    torch._dynamo.config.error_on_recompile = True
                return loss

            try:
                self.compare(loop, make=make)
            finally:
                torch._dynamo.config.error_on_recompile = False
                torch._dynamo.reset()

    def test_steps_and_reads_that_are_compiled(self):
        compiled = {}

        def loop(model, optimizer, step):
            if id(model) not in compiled:

                def train(x):
                    optimizer.zero_grad()
                    loss = (model(x) - 1).square().mean()
                    loss.backward()
                    optimizer.step()
                    return loss.detach()

                compiled[id(model)] = (
                    torch.compile(train, backend="eager"),
                    torch.compile(lambda: sum(p.square().sum() for p in model.parameters()), backend="eager"),
                )
            train, read = compiled[id(model)]
            return train(batch(step)), read().detach()

        self.addCleanup(torch._dynamo.reset)
        self.compare(loop, steps=3)

    def test_a_parameter_that_was_replaced(self):
        for replace in (
            lambda model: setattr(model[0], "weight", torch.nn.Parameter(torch.zeros(WIDTH, WIDTH, device=DEVICE))),
            lambda model: model.load_state_dict(network(3).state_dict(), assign=True),
        ):
            model, opt = self.make(network(), path=self.folder / f"{len(self.opened)}")
            take_step(model, opt, 0)
            replace(model)
            backward(model, 1)
            self.refuses(RuntimeError, "0.", opt.step)
            opt.close()


if __name__ == "__main__":
    launcher.main()
