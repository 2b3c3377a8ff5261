"""Tests that what an ordinary PyTorch loop does to buffers, random generators and the optimizer has the same effect
with nearstep, or raises at that line."""

import gc
import io
import json
import os
import pathlib
import pickle
import unittest.mock
import weakref

import launcher
from plain_loop import DEVICE, WIDTH, Loop, backward, batch, network, take_step

import torch

import nearstep


class Buffers(Loop):
    # --- Buffers and random generators ---

    def test_buffers_come_back(self):
        class Counts(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = network()
                self.norm = torch.nn.BatchNorm1d(WIDTH)
                self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
                self.register_buffer("scratch", torch.zeros(3), persistent=False)
                self.register_buffer("table", torch.zeros(600, 600))  # larger than what is always kept

            def forward(self, x):
                self.seen += 1
                self.scratch += 1
                if self.seen == 3:
                    self.table.fill_(3.0)
                return self.net(self.norm(x))

        def steps(model, opt, first, last):
            for step in range(first, last):
                take_step(model, opt, step)

        torch.manual_seed(0)
        model, opt = self.make(Counts().to(DEVICE))
        steps(model, opt, 0, 4)
        opt.save(self.folder / "kept")
        steps(model, opt, 4, 5)
        saved = opt.save(self.folder / "kept")
        self.assertEqual(len(list((self.folder / "kept").glob("*.program"))), 1)
        steps(model, opt, 5, 6)
        opt.finish()
        whole = {name: value.clone() for name, value in model.state_dict().items()}
        os.sync()
        opt.close()
        torch.manual_seed(0)
        model, opt = self.make(Counts().to(DEVICE))
        self.assertEqual(opt.resume(), 6)
        self.assert_equal_tensors(model.state_dict(), whole)
        self.assertEqual(model.scratch.sum(), 0)
        opt.close()
        torch.manual_seed(0)
        model, opt = self.make(Counts().to(DEVICE), path=self.folder / "from")
        self.assertEqual(opt.resume(saved), 5)
        self.assertEqual((int(model.seen), float(model.table[0, 0])), (5, 3.0))
        steps(model, opt, 5, 6)
        self.assert_equal_tensors(model.state_dict(), whole)

    def test_buffers_of_any_kind_come_back(self):
        def in_inference():
            with torch.inference_mode():
                return torch.ones(600, 600, device=DEVICE)

        starts = {
            "sparse": lambda: torch.eye(8, device=DEVICE).to_sparse(),
            "rows": lambda: torch.eye(8, device=DEVICE).to_sparse_csr(),
            "none": lambda: None,
            "inference": in_inference,
            "one_for_all": lambda: torch.ones(1, device=DEVICE).expand(5, 5),
            "complex": lambda: torch.ones(3, dtype=torch.complex64, device=DEVICE),
            "meta": lambda: torch.empty(3, device="meta"),
        }

        def make(name):
            model = network()
            model.register_buffer("kept", starts[name]())
            return self.make(torch.nn.Sequential(model), path=self.folder / name)

        for name in starts:
            with self.subTest(name):
                model, opt = make(name)
                if name in ("sparse", "rows", "none"):
                    model[0].kept = torch.full((3,), 2.0, device=DEVICE) if name == "none" else model[0].kept * 2
                if name == "one_for_all":
                    model[0].kept = model[0].kept + 1
                for step in range(2):
                    take_step(model, opt, step)
                opt.close()
                again, opt = make(name)
                self.assertEqual(opt.resume(), 2)
                if name != "meta":
                    self.assertEqual(again[0].kept.layout, model[0].kept.layout)
                    torch.testing.assert_close(again[0].kept, model[0].kept)

    def test_sizes_that_the_first_forward_changes_and_extra_states_come_back(self):
        from torch.ao.quantization import FakeQuantize, HistogramObserver, PerChannelMinMaxObserver

        class Watched(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = network()
                self.channels = PerChannelMinMaxObserver(ch_axis=1)
                self.histogram = HistogramObserver()
                self.fake = FakeQuantize(observer=PerChannelMinMaxObserver, ch_axis=1, qscheme=torch.per_channel_affine)
                self.register_buffer("late", torch.empty(0))
                self.register_buffer("grown", torch.zeros(1))
                self.loads, self.calls = [], 0

            def forward(self, x):
                if self.late.numel() == 0:
                    self.late = torch.zeros_like(x[0])
                self.grown = self.grown + x.detach().mean(0)
                self.late += x.detach().mean(0)
                self.calls += 1
                self.histogram(self.channels(x))
                return self.net(self.fake(x))

            def get_extra_state(self):
                return {"calls": self.calls, "late": self.late.sum()}

            def set_extra_state(self, state):
                self.calls = state["calls"]

            def _load_from_state_dict(self, state_dict, prefix, *rest):
                self.loads.append(sorted(state_dict))
                super()._load_from_state_dict(state_dict, prefix, *rest)

        whole, opt = self.make(Watched().to(DEVICE), path=self.folder / "whole")
        for step in range(4):
            take_step(whole, opt, step)
        opt.synchronize()
        model, opt = self.make(Watched().to(DEVICE), path=self.folder / "parts")
        for step in range(2):
            take_step(model, opt, step)
        opt.close()
        model, opt = self.make(Watched().to(DEVICE), path=self.folder / "parts")
        self.assertEqual(opt.resume(), 2)
        self.assertEqual((model.calls, model.loads), (2, [["grown", "late"]]))
        for step in range(2, 4):
            take_step(model, opt, step)
        opt.synchronize()
        self.assertEqual(model.calls, 4)
        for (name, buffer), other in zip(model.named_buffers(), whole.buffers()):
            torch.testing.assert_close(buffer, other, rtol=0, atol=0, msg=lambda text: f"{name}: {text}")

    def test_an_optimizer_of_tensors_says_that_it_knows_no_buffers(self):
        for stop in (2, 4):
            model = torch.nn.Sequential(network(), torch.nn.BatchNorm1d(WIDTH).to(DEVICE))
            _, opt = self.make(model.parameters())
            said = self.said_by(opt.resume)
            self.assertEqual(said.count("does not know the model's buffers"), stop // 4)
            for step in range(stop - 2, stop):
                take_step(model, opt, step)
            opt.finish()
            self.assertEqual((opt.steps, opt.durable_step), (stop, stop))
            opt.close()
            self.assertEqual(model[1].num_batches_tracked, 2)

    def test_what_is_lost_is_no_reason_to_refuse_where_nothing_is_needed(self):
        def opened(**settings):
            model, opt = self.make(network(), **settings)
            said = self.said_by(opt.resume)
            for step in range(2):
                take_step(model, opt, step)
            steps = opt.steps
            opt.close()
            return steps, "cannot be read" in said

        self.assertEqual(opened(keep_random=True), (2, False))
        for file in self.folder.rglob("rank-0.program-*"):
            file.unlink()
        self.refuses(ValueError, ("cannot be read", "leave keep_random out"), lambda: opened(keep_random=True))
        self.assertEqual(opened(), (4, False))
        self.assertEqual(opened(keep_random=True), (6, False))

    def test_a_damaged_file_of_buffers_is_a_sentence(self):
        """Whatever anybody wrote into it, behind right digests."""
        from nearstep._saving import program

        import numpy

        torch.manual_seed(3)
        kept = program.Program(torch.nn.BatchNorm1d(3), True)
        content = kept.content(torch.device("cpu"))
        kept.restore(content, torch.device("cpu"))
        length = int.from_bytes(content[:8], "little")
        about, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
        before = torch.get_rng_state(), numpy.random.get_state()[1].tolist()
        harms = [
            {"buffers": 5},
            {"random": 5},
            {"random": {"names": [], "python": [1], "numpy": None}},
            {"random": {**about["random"], "numpy": ["MT19937", [1], 5]}},
            {"random": {**about["random"], "python": [3, [1], None]}},
            [1],
        ]
        for change in (
            {"shape": [1e400]},
            {"shape": [-1, -1]},
            {"shape": [2**62]},
            {"dtype": "nn"},
            {"is_saved": True},
            {"name": "torch"},
        ):
            harms.append(
                {
                    "buffers": [
                        {**about["buffers"][0], **change},
                        *about["buffers"][1:-1],
                        {**about["buffers"][-1], "name": "x"},
                    ]
                    if "name" in change
                    else [{**about["buffers"][0], **change}]
                }
            )
        for harm in harms:
            with self.subTest(harm=str(harm)[:60]):
                text = json.dumps({**about, **harm} if isinstance(harm, dict) else harm).encode()
                with self.assertRaisesRegex(ValueError, "The buffers that were kept with the step cannot be read"):
                    kept.restore(len(text).to_bytes(8, "little") + text + rest, torch.device("cpu"))
        self.assertTrue(torch.equal(torch.get_rng_state(), before[0]))
        self.assertEqual(numpy.random.get_state()[1].tolist(), before[1])

    def test_values_of_other_archives_are_not_given_to_torch_load(self):
        """PyTorch before 2.6 runs what these hold, whatever weights_only says."""
        from nearstep._saving import program

        def written(write):
            file = io.BytesIO()
            write(file)
            return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)

        value = torch.ones(3)
        self.assertTrue(torch.equal(program._loaded(written(lambda file: torch.save(value, file))), value))
        with unittest.mock.patch("torch.load") as load:
            for write in (
                lambda file: torch.save(value, file, _use_new_zipfile_serialization=False),
                lambda file: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), file),
                lambda file: file.write(b"anything else"),
            ):
                with self.assertRaisesRegex(ValueError, "torch.save"):
                    program._loaded(written(write))
            load.assert_not_called()

    def test_random_generators_come_back_on_request(self):
        import random

        import numpy

        def steps(model, opt, first, last):
            for step in range(first, last):
                torch.nn.functional.dropout(model(batch(step)), 0.5).square().mean().backward()
                opt.step()
                opt.zero_grad()
            return torch.rand(1, device=DEVICE).item(), torch.rand(1).item(), random.random(), numpy.random.rand()

        def run(name, stops, **settings):
            torch.manual_seed(1), random.seed(1), numpy.random.seed(1)
            model, opt = self.make(network(), path=self.folder / name, **settings)
            torch.manual_seed(2)
            if stops:
                steps(model, opt, 0, 2)
                opt.close()
                model, opt = self.make(network(), path=self.folder / name, **settings)
                torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
                opt.resume()
                found = steps(model, opt, 2, 4)
            else:
                found = steps(model, opt, 0, 4)
            found = (*found, opt.masters_digest())
            opt.close()
            return found

        whole = run("whole", False)
        self.assertEqual(run("stopped", True, keep_random=True), whole)
        self.assertNotEqual(run("others", True), whole)

    def test_another_number_of_threads_is_said_once(self):
        if DEVICE != "cpu":
            self.skipTest("a GPU's arithmetic does not depend on the host's threads")
        threads = torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, threads)
        said = []
        for count in (threads, threads + 1, threads + 1):
            torch.set_num_threads(count)
            model, opt = self.make(network())
            said.append("threads per rank before" in self.said_by(opt.resume))
            backward(model, 0)
            opt.step()
            opt.close()
        self.assertEqual(said, [False, True, False])

    # --- The state as PyTorch's optimizers show it ---

    def test_the_state_shows_where_it_is(self):
        others = []

        def loop(model, optimizer, step):
            others[:] = others or [optimizer]  # first PyTorch's
            return take_step(model, optimizer, step)

        ours, opt = self.compare(loop, cls="Adam", lr=1e-3)
        (other,) = others
        theirs = other.param_groups[0]["params"]
        for p, q in zip(theirs, ours.parameters()):
            self.assertEqual(float(opt.state[q]["step"]), 6)
            for name in ("exp_avg", "exp_avg_sq"):
                torch.testing.assert_close(opt.state[q][name], other.state[p][name].cpu(), rtol=1e-3, atol=1e-7)
        self.assertEqual(type(opt.state[q]["exp_avg"] * 2), torch.Tensor)
        self.assertEqual(type(pickle.loads(pickle.dumps(opt.state[q]["exp_avg"]))), torch.Tensor)
        torch.zeros(q.shape).copy_(opt.state[q]["exp_avg"])
        for write in (
            lambda m: m.zero_(),
            lambda m: m.data.mul_(0.1),
            lambda m: m.__imul__(2),
            lambda m: m.__setitem__(0, 0.0),
            lambda m: torch._foreach_mul_([m], 2.0),
            lambda m: torch.mul(m, 2, out=m),
        ):
            for name in ("exp_avg", "step"):
                self.refuses(RuntimeError, "fresh=True", lambda: write(opt.state[q][name]))
        for clear in (opt.state.clear, lambda: opt.state.pop(q), lambda: setattr(opt, "state", {})):
            self.refuses(RuntimeError, "fresh=True", clear)
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        before = opt.steps, opt.masters_digest()
        get_optimizer_state_dict(ours, opt)
        self.assertEqual((opt.steps, opt.masters_digest()), before)

    def test_a_model_that_outlives_its_optimizer_has_the_last_step(self):
        def fit(model, make, steps):
            optimizer = make(model)
            for step in steps:
                take_step(model, optimizer, step)

        def ours(**settings):
            return lambda model: nearstep.SGD(
                model, lr=0.1, path=self.folder / str(len(list(self.folder.iterdir()))), **settings
            )

        theirs = network()
        fit(theirs, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), range(3))
        for settings in ({}, {"keep_gradients": True}, {"stream": nearstep.Stream(slots=2)}):
            with self.subTest(settings):
                model = network()
                fit(model, ours(**settings), range(2))
                if "stream" in settings and DEVICE == "cuda":  # the layers are in host memory
                    self.refuses(RuntimeError, ("host memory", "model.cuda()"), lambda: model(batch(9)))
                    model.to(DEVICE)
                self.assertTrue(model(batch(9)).requires_grad)
                fit(model, ours(**settings), range(2, 3))
                torch.testing.assert_close(model.to(DEVICE).state_dict(), theirs.state_dict(), rtol=1e-4, atol=1e-5)

    def test_parameters_that_share_memory_are_refused(self):
        model = network()
        model[3][0].weight.data = model[0].weight.data
        self.refuses(
            ValueError, ("0.weight", "3.0.weight"), lambda: nearstep.SGD(model, lr=0.1, path=self.folder / "state")
        )
        model = network()
        model[0].bias.data = model[0].weight.data[3]
        self.refuses(
            ValueError, ("0.weight", "0.bias"), lambda: nearstep.SGD(model, lr=0.1, path=self.folder / "state")
        )
        flat = torch.zeros(8)  # parts of one memory
        nearstep.SGD([torch.nn.Parameter(flat[:4]), torch.nn.Parameter(flat[4:])], lr=0.1, path=self.folder / "state")

    def test_a_saved_state_dict_can_be_loaded_whatever_came_later(self):
        model, opt = self.make(network())
        for step in range(2):
            take_step(model, opt, step)
        torch.save({"model": model.state_dict(), "optimizer": opt.state_dict()}, self.folder / "saved.pt")
        digest = opt.masters_digest()
        late = opt.state_dict()
        for step in range(2, 4):
            take_step(model, opt, step)
        self.refuses(RuntimeError, ("step 2", "opt.save()"), lambda: pickle.dumps(late)) if not pathlib.Path(
            json.loads(late["param_groups"][0]["nearstep"])["checkpoint"]
        ).exists() else None
        torch.save(opt.state_dict(), self.folder / "later.pt")
        other, second = self.make(network(5), path=self.folder / "second")
        second.load_state_dict(torch.load(self.folder / "saved.pt", weights_only=True)["optimizer"])
        self.assertEqual((second.steps, second.masters_digest()), (2, digest))
        self.refuses(
            RuntimeError,
            "step 2",
            lambda: opt.load_state_dict(torch.load(self.folder / "saved.pt", weights_only=True)["optimizer"]),
        )

    # --- A process that goes on ---

    def test_an_optimizer_that_is_dropped_leaves_nothing(self):
        def once():
            model, opt = network(), None
            opt = nearstep.AdamW(model, path=self.path, lr=1e-3)
            opt.resume()
            for step in range(2):
                take_step(model, opt, step)
            backward(model, 2)
            return weakref.ref(opt)

        def left():
            gc.collect()
            return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

        self.assertIsNone((once(), gc.collect())[0]())
        before = left()
        for _ in range(3):
            once()
        self.assertEqual(left(), before)
        _, opt = self.make(network())
        self.assertEqual(opt.resume(), 8)

    def test_questions_start_nothing(self):
        _, opt = self.make(network())
        self.assertEqual((opt.stats(), opt.progress()), ({}, "no step yet"))
        opt.finish()
        opt.synchronize()
        self.assertFalse(self.path.exists())


if __name__ == "__main__":
    launcher.main()
