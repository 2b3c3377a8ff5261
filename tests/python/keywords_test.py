"""Tests what editors, help() and type checkers know of the optimizers' arguments, and the sentence about an argument
that none takes."""

import contextlib
import inspect
import io
import pydoc
import re
import subprocess
import sys

import launcher

launcher.need()

import torch

import nearstep
from nearstep._starting import keywords, suggestions

CLASSES = (nearstep.AdamW, nearstep.Adam, nearstep.SGD, nearstep.Adagrad, nearstep.Lion)

RIGHT = """
import nearstep, torch
model = torch.nn.Linear(8, 8)
opt = nearstep.AdamW(nearstep.groups(model), lr=3e-4, path=["a", "b"], state="compact", codec="q4", clip_norm=1.0,
                     config={"csd": {"slots": 6}})
start: int = opt.resume()
opt.export("folder", dtype="bf16")
with nearstep.empty("cuda"):
    another = nearstep.Lion(model.parameters(), stream=nearstep.Stream(gpu_memory_gb=16))
saved: str = opt.save(extra=3)
"""
WRONG = (  # a line, and what mypy says of it
    ('nearstep.AdamW(model, codec="q5")', "arg-type"),
    ("nearstep.AdamW(model, fused=True)", "call-arg"),
    ("nearstep.SGD(model, betas=(0.9, 0.99))", "call-arg"),
    ("nearstep.AdamW(model, path=3)", "arg-type"),
    ("opt.export(3)", "arg-type"),
    ("opt.save(xtra=3)", "call-arg"),
    ("nearstep._engine.digest(3, 4, 5)", "call-arg"),
)


class Keywords(launcher.FolderTest):
    def test_what_editors_are_told_is_what_the_optimizer_takes(self):
        taken = [
            one.name
            for one in inspect.signature(nearstep.Optimizer.__init__).parameters.values()
            if one.kind is inspect.Parameter.KEYWORD_ONLY
        ]
        self.assertEqual(taken, list(keywords.Settings.__annotations__))
        for cls in CLASSES:
            shown = inspect.signature(cls).parameters
            self.assertEqual(list(shown)[-len(taken) :], taken)
            self.assertFalse(any(one.kind is inspect.Parameter.VAR_KEYWORD for one in shown.values()))
            self.assertEqual(
                [name for name in taken if not re.search(rf"\b{name}\b", cls.__doc__)],
                [],
                "arguments of which help() says nothing",
            )

    def test_the_program_in_help_runs(self):
        for cls in CLASSES:
            with self.subTest(cls=cls.__name__):
                text = pydoc.render_doc(cls, renderer=pydoc.plaintext)
                program = re.search(r"\n( \|      import nearstep.*?)\n \|  \n \|  ``params``", text, re.DOTALL)[1]
                program = (
                    "\n".join(line[8:] for line in program.splitlines())
                    .replace("100", "30")
                    .replace("runs/example", str(self.folder / cls.__name__))
                )
                with contextlib.redirect_stderr(io.StringIO()):
                    known = {}
                    exec(program, known)  # noqa: S102
                self.assertEqual(known["step"], 29)
                self.assertFalse(known["opt"].param_groups[0]["params"][0].isnan().any())

    def test_an_argument_that_no_optimizer_has_is_named_with_what_to_do(self):
        model = torch.nn.Linear(4, 4)
        for cls, name, what in (
            (nearstep.AdamW, "fused", suggestions._INSTEAD["fused"]),
            (nearstep.SGD, "nesterov", suggestions._INSTEAD["nesterov"]),
            (nearstep.AdamW, "max_grad_norm", "clip_norm"),
            (nearstep.Adam, "clipnorm", "clip_norm"),
            (nearstep.Lion, "pathh", "path"),
            (nearstep.SGD, "betas", "params, lr, momentum"),
        ):
            with self.assertRaisesRegex(TypeError, rf"nearstep.{cls.__name__} .*\b{name}\b.*\b{re.escape(what)}"):
                cls(model, **{name: True})
        for like in (torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad):
            theirs = set(inspect.signature(like).parameters) - set(
                inspect.signature(getattr(nearstep, like.__name__)).parameters
            )
            self.assertEqual(theirs - set(suggestions._INSTEAD), set(), "options of PyTorch's of which nothing is said")

    def test_other_calls_name_the_argument_that_was_meant(self):
        opt = nearstep.AdamW(torch.nn.Linear(4, 4), path=self.folder / "state")
        for call, name, near in (
            (nearstep.Stream, "gpu_memory", "gpu_memory_gb"),
            (nearstep.empty, "devic", "device"),
            (nearstep.serve, "paths", "path"),
            (opt.resume, "checkpont", "checkpoint"),
            (opt.save, "xtra", "extra"),
            (opt.export, "dtyp", "dtype"),
        ):
            with self.assertRaisesRegex(TypeError, rf"^nearstep\.[\w.]+ .*\b{name}\b.*\b{near}\b"):
                call(**{name: 1})
        opt.close()

    def test_a_group_has_settings_of_groups(self):
        params = [torch.nn.Parameter(torch.zeros(4))]
        for key, what in (
            ("weigth_decay", "weight_decay"),
            ("beta", "betas"),
            ("clip_norm", "AdamW(..., clip_norm=...)"),
        ):
            with self.assertRaisesRegex(TypeError, re.escape(what)):
                nearstep.AdamW([{"params": params, key: 0.5}])
        with self.assertRaisesRegex(TypeError, "weight_decy.* weight_decay"):
            nearstep.AdamW(nearstep.groups(torch.nn.Linear(4, 4), weight_decy=0.1))
        nearstep.SGD([{"params": params, "name": "all", "lr_scale": 0.5, "initial_lr": 1e-3, "max_momentum": 0.9}])

    def test_values_are_checked_when_the_optimizer_is_made(self):
        for wrong in (
            {"weight_decay": None},
            {"clip_norm": "1"},
            {"accumulation": 1.5},
            {"fresh": "no"},
            {"keep_gradients": "yes"},
            {"gpu_memory_gb": "16"},
            {"config": ["csd.slots"]},
        ):
            (name,) = wrong
            with self.assertRaisesRegex(ValueError, f"^{name}.*: give "):
                nearstep.AdamW(torch.nn.Linear(4, 4), **wrong)
        with self.assertRaisesRegex(TypeError, "give nearstep.Stream"):
            nearstep.AdamW(torch.nn.Linear(4, 4), stream=True)

    def test_an_error_is_said_once_in_a_run(self):
        program = self.folder / "wrong.py"
        program.write_text(
            "import os, nearstep, torch\nif os.environ['RANK'] in os.environ['WRONG']:\n    "
            "nearstep.AdamW(torch.nn.Linear(4, 4), codc='q4')\n"
        )
        for wrong in ("0 1", "1"):
            worker = launcher.Process(2, program, WRONG=wrong)
            self.assertNotEqual(worker.wait(), 0)
            self.assertEqual(
                len(re.findall("TypeError: nearstep.AdamW .*codc.* codec", worker.text())), 1, worker.text()
            )

    def test_mypy_knows_them(self):
        if absent := launcher.missing("mypy"):
            self.skipTest(absent)
        (self.folder / "right.py").write_text(RIGHT)
        (self.folder / "wrong.py").write_text(RIGHT + "\n".join(line for line, _ in WRONG))
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--cache-dir", str(launcher.scratch() / "mypy"), "right.py", "wrong.py"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=launcher.WORKERS_LIMIT_S,
        )
        errors = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
        first = RIGHT.count("\n") + 1
        self.assertEqual(
            errors,
            [("wrong", str(first + number), kind) for number, (_, kind) in enumerate(WRONG)],
            done.stdout + done.stderr,
        )


if __name__ == "__main__":
    launcher.start_forks("torch")
    launcher.main()
