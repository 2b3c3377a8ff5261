"""The private names of PyTorch that nearstep uses (python/nearstep/_torch_private.py) are there and do what they are
used for: with the PyTorch that is installed and, with NEARSTEP_LONG, with the oldest that nearstep supports and one
between. The test needs no nearstep, so that any environment with PyTorch runs it.

torch_private_test.py --here    tries the names with this interpreter's PyTorch
"""

import ast
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import launcher

ROOM = pathlib.Path(__file__).parents[2] / "python/nearstep/_torch_private.py"
OTHERS = ("2.4.0", "2.8.0")
LIMIT_S = 600


def in_backward(private):
    """Tries what autograd says within and after backward passes."""
    import torch

    numbers, is_valid, ended, asked = [], [], [], []
    x = torch.ones(2, 2, requires_grad=True)

    def look(_):
        numbers.append(private.current_graph_task_id())
        is_valid.append(private.is_checkpoint_valid())
        private.queue_callback(lambda: ended.append(True))

    def run(outputs, *arguments, **settings):
        asked.append(arguments[3])
        return original(outputs, *arguments, **settings)

    original = getattr(*private.END_OF_BACKWARD)
    setattr(*private.END_OF_BACKWARD, run)
    for go in (
        lambda loss: loss.backward(),
        lambda loss: loss.backward(inputs=[x]),
        lambda loss: torch.autograd.grad(loss, [x]),
    ):
        middle = x * 1
        middle.register_hook(look)
        go(middle.sum())
    setattr(*private.END_OF_BACKWARD, original)
    yield "current_graph_task_id", min(numbers) >= 0 and private.current_graph_task_id() == -1
    yield "is_checkpoint_valid", is_valid == [True, False, False]
    yield "queue_callback", len(ended) == 3
    yield "END_OF_BACKWARD", [len(one) for one in asked] == [0, 1, 1] and asked[2][0] is x


def in_transforms(private):
    """Tries what torch.func, torch.jit.trace() and modes for dispatch say."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    inside, modes = [], []

    def within(value):
        inside.append(private.peek_interpreter_stack() is not None)
        with private.temporarily_clear_interpreter_stack():
            inside.append(private.peek_interpreter_stack() is None)
        return value * 1

    def traced(value):
        state = private.get_tracing_state()
        private.set_tracing_state(None)
        inside.append(state is not None and private.get_tracing_state() is None)
        private.set_tracing_state(state)
        return value + 1

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            modes.append(func)
            return func(*args, **(kwargs or {}))

    torch.func.vmap(within)(torch.ones(2))
    torch.jit.trace(traced, torch.ones(2), check_trace=False)
    with Counting():
        is_counted = private.len_torch_dispatch_stack() == 1
        with private.disable_current_modes():
            torch.ones(2)
    yield "peek_interpreter_stack", all(inside[:2]) and private.peek_interpreter_stack() is None
    yield "get_tracing_state", len(inside) == 3 and inside[2] and private.get_tracing_state() is None
    yield "disable_current_modes", is_counted and not modes and private.len_torch_dispatch_stack() == 0
    yield "len_torch_dispatch_stack_pre_dispatch", private.len_torch_dispatch_stack_pre_dispatch() == 0


def on_tensors(private):
    """Tries what is done with tensors, and whose class is asked."""
    import torch

    asked = []

    class Asking(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise AssertionError(func)

    one, x = private.make_wrapper_subclass(Asking, (2, 3), dtype=torch.half, device="cpu"), torch.ones(2, 2)
    for context in (private.DisableTorchFunction, private.DisableTorchFunctionSubclass):
        with context():
            shape = one.shape
    uses = private.storage_uses(x)
    view = x.view(4)
    leaves, form = private.tree_flatten({"a": [x, 1]})
    yield "make_wrapper_subclass", shape == (2, 3) and not asked and one.shape == shape and bool(asked)
    yield "has_storage", private.has_storage(x) and not private.has_storage(x.to_sparse())
    yield "storage_uses", private.storage_uses(view) == uses + 1
    yield "has_compatible_shallow_copy_type", private.has_compatible_shallow_copy_type(x, x)
    yield "is_traceable_wrapper_subclass", not private.is_traceable_wrapper_subclass(x)
    yield "foreach_norm", float(private.foreach_norm([x], 2, dtype=torch.float32)[0]) == 2
    yield "tree_flatten", private.tree_unflatten(leaves, form)["a"][0] is x
    yield "_overloadpacket", torch.ops.aten.add.Tensor._overloadpacket is torch.ops.aten.add


def in_compiled(private):
    """Tries what torch.compile() makes, and whether it describes tensors."""
    import inspect

    import torch

    layer = torch.nn.Linear(1, 1)
    layer.compile(backend="eager")
    made = inspect.getclosurevars(layer._compiled_call_impl).nonlocals.get("self")
    private.leave_uncompiled("nowhere")
    yield "OptimizeContext", isinstance(made, private.OptimizeContext)
    yield "is_compiling", not private.is_compiling()


def of_objects(private):
    """Tries the attributes of objects."""
    import torch

    layer = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters())
    torch.optim.lr_scheduler.ConstantLR(optimizer)
    optimizer.step()
    extra = type("Extra", (torch.nn.Module,), {"get_extra_state": lambda self: 1})()
    for one, kind in ((layer.weight, torch.Tensor), (layer, torch.nn.Module), (optimizer, torch.optim.Optimizer)):
        for name in private.ATTRIBUTES[kind]:
            yield f"{kind.__name__}.{name}", hasattr(one, name)
    yield "_overloadpacket", torch.ops.aten.add.Tensor._overloadpacket is torch.ops.aten.add
    yield "EXTRA_STATE_KEY_SUFFIX", list(extra.state_dict()) == [private.EXTRA_STATE_KEY_SUFFIX]
    for home, name in private.TAKERS_OF_TENSORS:
        yield f"{home.__name__}.{name}", callable(getattr(home, name, None))
    if private.DTensor is not None:
        yield (
            "DTensor._local_tensor",
            "_local_tensor" in private.DTensor.__dict__ or hasattr(private.DTensor, "_local_tensor"),
        )
        yield "compute_local_shape_and_global_offset", callable(private.compute_local_shape_and_global_offset)
    with contextlib.suppress(ImportError):  # fully_shard() is public since PyTorch 2.6
        from torch.distributed.fsdp import FSDPModule

        yield "FSDPModule._get_fsdp_state", callable(getattr(FSDPModule, "_get_fsdp_state", None))


def used_attributes(private):
    """Private attributes of PyTorch's objects that the package uses and the room does not list: yields their places."""
    import torch

    kinds = [torch.Tensor, torch.nn.Module, torch.optim.Optimizer, *filter(None, [private.DTensor])]
    objects = (torch.ones(1), torch.nn.Linear(1, 1), torch.optim.SGD([torch.ones(1)]))
    of_pytorch = {name for one in (*kinds, *objects) for name in dir(one)}
    listed = {name for names in private.ATTRIBUTES.values() for name in names}
    for path in sorted(ROOM.parent.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree) if path != ROOM else ():
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", None)
            is_private = isinstance(name, str) and re.fullmatch("_[a-z]\\w*", name)
            if is_private and name in of_pytorch - listed:
                yield f"{path.relative_to(ROOM.parent)}:{node.lineno} {name}, which is not in ATTRIBUTES", False


def here():
    """Tries all names. Returns those that are not as expected."""
    sys.path.insert(0, str(ROOM.parent))
    import _torch_private as private

    tried = (in_backward, in_transforms, on_tensors, in_compiled, of_objects, used_attributes)
    return [name for group in tried for name, holds in group(private) if not holds]


class TorchPrivate(unittest.TestCase):
    def test_the_names_with_the_installed_pytorch(self):
        self.assertEqual(here(), [])

    @unittest.skipUnless(
        "NEARSTEP_LONG" in os.environ, "it installs other versions of PyTorch from the index: set NEARSTEP_LONG=1"
    )
    def test_the_names_with_older_ones(self):
        for version in OTHERS:
            with self.subTest(version), tempfile.TemporaryDirectory() as folder:
                subprocess.run([sys.executable, "-m", "venv", folder], check=True)
                python = pathlib.Path(folder) / "bin/python"
                words = ["install", "-q", "--disable-pip-version-check", f"torch=={version}", "numpy<2"]
                subprocess.run([python, "-m", "pip", *words], check=True, timeout=LIMIT_S)
                done = subprocess.run([python, __file__, "--here"], capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:
        wrong = here()
        print("\n".join(f"{name} is not as expected" for name in wrong))
        sys.exit(bool(wrong))
    launcher.need()
    launcher.main()
