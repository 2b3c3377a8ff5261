"""A user's mistake ends in one sentence, as the right exception, and leaves the state unchanged. One process,
one rank.
"""

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
import unittest.mock

import launcher
from package import FLAGS, Package

import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import nearstep
import networks


class BadInput(Package):
    def test_a_folder_with_a_run_is_kept_without_resume_or_fresh(self):
        digest = self.trained()
        model, opt = self.make()
        self.refuses(
            ValueError, (self.path, "step 3", "opt.resume()", "fresh=True"), lambda: self.train(model, opt, 0, 1)
        )
        self.assert_kept(digest)
        _, opt = self.make(fresh=True)
        self.assertEqual(opt.steps, 0)

    def test_a_model_of_other_shapes(self):
        digest = self.trained()
        for width in (96, 200):
            _, opt = self.make(networks.Layers(2, width))
            self.refuses(ValueError, "shapes", opt.resume)
        _, opt = self.make(networks.Layers(3, 160))
        self.assertNotIn("moments", self.refuses(ValueError, "tensors", opt.resume), "only what is different")
        self.assert_kept(digest)

    def test_a_state_with_the_moments_of_another_optimizer(self):
        digest = self.trained()
        _, opt = self.make(cls=nearstep.Lion)
        self.refuses(ValueError, ("moments of Adam", "moments of Lion"), opt.resume)
        _, opt = self.make(cls=nearstep.Adam)
        self.assertEqual(opt.resume(), 3)
        opt.close()
        self.assert_kept(digest)

    def test_a_path_that_cannot_be_made(self):
        (self.folder / "file").write_text("")
        _, opt = self.make(path=self.folder / "file/state")
        self.refuses(NotADirectoryError, self.folder / "file", opt.resume)
        for path in (3, "", [], ["a", ""]):
            self.refuses(ValueError, "path", lambda path=path: self.make(path=path))
        _, opt = self.make(path="/proc/nearstep/state")
        self.refuses(OSError, ("/proc/nearstep/state", "choose a folder"), opt.resume)
        (self.folder / "locked").mkdir(mode=0)
        _, opt = self.make(path=self.folder / "locked/state")
        was = os.geteuid()
        os.seteuid(was or 65534)  # root may write anywhere
        try:
            self.refuses(PermissionError, "locked/state", opt.resume)
        finally:
            os.seteuid(was)

    def test_names_that_are_none(self):
        model, opt = self.make()
        self.train(model, opt, 0, 1)
        for name in ("a\udcff", b"a\xff", "a\0b"):
            for use in (
                lambda: self.make(path=[name]),
                lambda: self.make(weights=name),
                lambda: opt.save(name),
                lambda: opt.export(name),
                lambda: self.make(config={"checkpoint.path": name}),
            ):
                with self.subTest(name=name):
                    self.refuses(ValueError, "a", use)
            _, other = self.make(path=self.folder / "other")
            self.refuses(ValueError, "a", lambda: other.resume(name))
        self.refuses(ValueError, "UTF-8", lambda: self.make(codec="\ud800"))
        self.refuses(TypeError, "checkpoint.path", lambda: self.make(config={"checkpoint.path": 5}))
        self.refuses(ValueError, "csd.slots", lambda: self.make(config={5: 1}))
        before = os.getcwd()
        (self.folder / "gone").mkdir()
        os.chdir(self.folder / "gone")
        os.rmdir(self.folder / "gone")
        try:
            self.refuses(FileNotFoundError, ("relative", "current folder"), lambda: self.make(path="relative"))
        finally:
            os.chdir(before)

    def test_numbers_of_other_libraries(self):
        numpy = __import__("numpy")
        _, opt = self.make(config={"csd.slots": numpy.int64(8), "csd.rated_tbw": numpy.float32(0.5)})
        self.assertEqual(opt.resume(), 0)

    def test_a_number_of_ranks_that_is_none(self):
        for variables, expected in (
            ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'"),
            ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "0"}, "LOCAL_WORLD_SIZE is '0'"),
        ):
            with unittest.mock.patch.dict(os.environ, variables):
                self.refuses(ValueError, expected, self.make)

    def joined(self, size):
        """Enters a process group of torch.distributed with so many processes, of which this one is real."""
        torch.distributed.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
        self.addCleanup(lambda: torch.distributed.is_initialized() and torch.distributed.destroy_process_group())

    def test_processes_that_torch_joins_after_the_optimizer_was_made(self):
        model, opt = self.make()
        begun = self.make(path=self.folder / "begun")
        self.train(*begun, 0, 1)
        self.joined(2)
        stated = ("torch.distributed joined 2 processes", "call init_process_group() before")
        self.refuses(RuntimeError, stated, lambda: self.train(model, opt, 0, 1))
        self.refuses(RuntimeError, stated, lambda: self.train(*begun, 1, 2))
        torch.distributed.destroy_process_group()
        self.joined(1)
        self.train(model, opt, 0, 1)

    def test_parameters_that_are_divided_among_processes(self):
        self.joined(1)
        network = lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))  # noqa: E731
        flat = functools.partial(torch.distributed.fsdp.FullyShardedDataParallel, device_id=torch.device("cpu"))
        flat_views = lambda model: torch.distributed.fsdp.FullyShardedDataParallel(  # noqa: E731
            model, device_id=torch.device("cpu"), use_orig_params=True
        )
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        dtensors = lambda model: torch.distributed.tensor.parallel.parallelize_module(  # noqa: E731
            model, mesh, {"0": torch.distributed.tensor.parallel.ColwiseParallel()}
        )
        for wrap, stated in ((flat, "FullyShardedDataParallel"), (flat_views, "FullyShardedDataParallel")):
            for of in (lambda model: model, lambda model: model.parameters()):
                self.refuses(ValueError, stated, lambda: nearstep.SGD(of(wrap(network())), lr=0.1, path=self.path))
        for wrap, stated, error in (
            (flat, "another tensor", RuntimeError),
            (flat_views, "part of PyTorch's", ValueError),
            (dtensors, "another tensor", RuntimeError),
        ):
            model = network()
            opt = nearstep.SGD(model, lr=0.1, path=self.path)
            wrapped = wrap(model)
            self.refuses(error, stated, lambda: (wrapped(torch.ones(1, 4)).sum().backward(), opt.step()))
        model = network()
        opt = nearstep.SGD(model.parameters(), lr=0.1, path=self.path)
        flat(model)(torch.ones(1, 4)).sum().backward()
        with self.assertWarnsRegex(UserWarning, "no parameter .* has a gradient"):
            opt.step()
        opt.close()
        p = torch.nn.Parameter(torch.empty(0))
        p.ds_numel = 16  # as deepspeed.zero.Init has it
        self.refuses(ValueError, "ZeRO-3", lambda: nearstep.SGD([p], lr=0.1, path=self.path))

    def test_processes_of_another_mpi(self):
        with unittest.mock.patch.dict(os.environ, {"PMI_SIZE": "2", "PMI_RANK": "1"}):
            self.refuses(RuntimeError, ("another MPI", "2 processes", "nearstep-run --nproc-per-node 2"), self.make)

    def test_a_notice_reaches_a_program_that_handles_sigterm_alone(self):
        heard = []
        before = signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
        try:
            self.make()
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(0)  # a handler runs between two instructions of Python's
        finally:
            signal.signal(signal.SIGTERM, before)
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        self.assertEqual(heard, ["SIGTERM"])

    def test_start_values_that_are_not_finite(self):
        def spoilt():
            model = networks.Layers(2, 160)
            with torch.no_grad():
                model.layers[1][0].weight[3, :2] = float("nan")
                model.layers[1][0].bias[5] = -float("inf")
            return model

        stated = ("layers.1.0.weight have 2 numbers", "infinite or NaN", "1 other tensor has")
        for settings in (
            {},
            {"stream": nearstep.Stream(slots=2)},
            {"stream": nearstep.Stream(slots=2, host_memory_gb=8)},
            {"state": "compact"},
        ):
            with self.subTest(settings):
                model, opt = self.make(spoilt(), path=self.folder / "spoilt", **settings)
                self.opened.remove(opt)
                self.refuses(ValueError, stated, lambda: self.train(model, opt, 0, 1))
                with contextlib.suppress(ValueError):
                    opt.close()
                self.assertFalse((self.folder / "spoilt").exists())
        model = spoilt()
        model.layers[1].requires_grad_(False)
        _, opt = self.make(model, path=self.folder / "frozen")
        self.assertIn("the frozen parameter layers.1.0.weight has NaN", self.said_by(opt.resume))

    def test_an_error_that_closing_meets_again_is_said_once(self):
        program = (
            "import nearstep, torch\nmodel = torch.nn.Linear(8, 8)\nmodel.weight.data[0, 0] = float('nan')\n"
            f"opt = nearstep.AdamW(model, path={str(self.folder / 'said')!r})\n"
            "model(torch.ones(1, 8)).sum().backward()\nopt.step()\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr.count("infinite or NaN")), (1, 1), done.stderr)

    def test_messages_do_not_go_into_the_state(self):
        kept = os.dup(0)
        os.close(0)
        try:
            _, opt = self.make()
            opt.resume()
            found = os.readlink("/proc/self/fd/0")
        finally:
            os.dup2(kept, 0)
            os.close(kept)
        self.assertEqual(found, "/dev/null")

    def test_training_goes_on_after_a_folder_that_cannot_be_saved_to(self):
        digest = self.trained()
        (self.folder / "file").write_text("")
        folder = str(self.folder / "file/checkpoints")
        model, opt = self.make(path=self.folder / "other")
        self.train(model, opt, 0, 1)
        self.refuses(NotADirectoryError, "file/checkpoints", lambda: opt.save(folder))
        self.refuses(NotADirectoryError, "file/checkpoints", lambda: opt.save(folder, extra={"batch": 1}))
        self.refuses(TypeError, "JSON cannot hold", lambda: opt.save(extra={"batches": {1, 2}}))
        self.assertTrue(list((self.folder / "checkpoints").glob("step-*")), "other ranks wrote their part of it")
        self.train(model, opt, 1, 3)
        self.assertEqual(opt.masters_digest(), digest)
        opt.close()

    def test_a_second_optimizer_on_the_same_folder(self):
        model, opt = self.make()
        self.train(model, opt, 0, 3)
        digest = opt.masters_digest()
        model.loss(3).backward()
        _, second = self.make()
        self.assertEqual(second.resume(), 3, "as a notebook's cell that runs again")
        self.assertEqual(second.masters_digest(), digest)
        self.refuses(RuntimeError, (self.path, "path"), opt.step)
        second.close()
        self.assert_kept(digest)

    def test_a_second_optimizer_of_the_same_model(self):
        model, unused = self.make()
        _, opt = self.make(model)  # takes the model over, since the first has not begun
        self.refuses(RuntimeError, "closed", unused.resume)
        self.train(model, opt, 0, 2)
        self.refuses(ValueError, "close()", lambda: self.make(model, path=self.folder / "other"))
        self.train(model, opt, 2, 3)
        opt.close()
        self.train(*self.make(model, path=self.folder / "other"), 0, 1)

    def test_parameters_on_two_devices_or_on_one_without_memory(self):
        model = networks.Layers(2, 160)
        model.layers[1].to("meta")
        _, opt = self.make(model)
        self.refuses(ValueError, "cpu, meta", opt.resume)
        _, opt = self.make(networks.Layers(2, 160).to("meta"))
        self.refuses(ValueError, "meta", opt.resume)

    def test_formats_that_are_not_trained(self):
        model, opt = self.make()
        model.double()
        self.refuses(ValueError, "float64", opt.resume)

    def test_nothing_to_train(self):
        for params in (lambda model: model, lambda model: model.parameters(), nearstep.groups):
            frozen = networks.Layers(2, 160).requires_grad_(False)
            _, opt = self.make(params(frozen))
            self.assertEqual((opt.resume(), opt.step(), opt.steps, opt.stats()), (0, None, 0, {}))
            opt.zero_grad()
            self.refuses(RuntimeError, "frozen", opt.save)
            opt.close()
        self.assertFalse(self.path.exists())

    def test_a_scaler_of_pytorch(self):
        model, opt = self.make()
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(model.loss(0)).backward()
        self.refuses(RuntimeError, "opt.scale(loss)", lambda: scaler.step(opt))

    def test_a_rate_that_changes_between_backward_and_step(self):
        model, opt = self.make()
        self.train(model, opt, 0, 2)
        model.loss(2).backward()
        opt.param_groups[0]["lr"] = 1e-4
        self.refuses(RuntimeError, "before backward()", opt.step)
        opt.param_groups[0]["lr"] = 1e-3
        opt.step()
        opt.zero_grad()
        self.train(model, opt, 3, 4)
        digest = opt.masters_digest()
        opt.close()
        self.assert_kept(digest, 4)

    def test_backward_more_often_than_before(self):
        model, opt = self.make()
        self.train(model, opt, 0, 2)
        model.loss(2).backward()
        self.refuses(RuntimeError, "accumulation=N", model.loss(2).backward)
        opt.zero_grad()
        self.train(model, opt, 2, 3)

    def test_a_path_with_words_of_the_program_is_named_as_it_is(self):
        path = self.folder / "--fresh csd.path" / "(--set train.seed"
        self.train(*self.make(path=path), 0, 1)
        self.opened[-1].close()
        for start in (
            lambda: self.make(networks.Layers(3, 32), path=path)[1].resume(),
            lambda: self.train(*self.make(path=path), 0, 1),
        ):
            with self.assertRaises(ValueError) as caught:
                start()
            message = str(caught.exception)
            self.assertIn(str(path), message)
            for flag in FLAGS:
                self.assertNotIn(flag, message.replace(str(path), ""), "a flag of the command line")

    def test_settings_that_are_not(self):
        self.refuses(ValueError, ("csd.slotz", "csd.slots"), lambda: self.make(config={"csd": {"slotz": 3}}))
        self.refuses(ValueError, 'codec = "q5"', lambda: self.make(codec="q5"))
        for key, instead in (
            ("train.steps", "your own loop"),
            ("train.learning_rate", "pass lr="),
            ("model.dtype", "the module"),
            ("data.train", "your own loop"),
            ("checkpoint.every", "opt.save()"),
            ("hosts.ranks", "a site"),
            ("plan.gpu_tflops", ""),
        ):
            section, name = key.split(".")
            self.assertIn(
                instead, self.refuses(ValueError, f"config has '{key}'", lambda: self.make(config={section: {name: 3}}))
            )
        self.make(config={"train.loss_scale": 3, "train.seed": 3})
        for key, value, argument in (("csd.path", ["/nowhere"], "path"), ("csd.state", "q8", "state")):
            self.refuses(ValueError, (argument, value), lambda: self.make(state="fp32", config={key: value}))
        self.make(state="q8", config={"csd.state": "q8", "train.clipping": "delayed"}, clip_norm=1)
        for name, value in (
            ("lr", -1e-3),
            ("lr", float("nan")),
            ("lr", "1e-3"),
            ("betas", (0.9, 1.5)),
            ("betas", (0.9,)),
            ("eps", -1),
            ("weight_decay", -0.1),
            ("clip_norm", -1),
            ("accumulation", -2),
        ):
            self.refuses(ValueError, (name, value), lambda name=name, value=value: self.make(**{name: value}))
        self.refuses(TypeError, "nearstep.groups()", lambda: nearstep.groups(networks.Layers(2, 160).parameters()))
        self.refuses(ValueError, 'state = "fp33"', lambda: self.make(state="fp33"))
        self.refuses(ValueError, "placement.parameters", lambda: self.make(config={"placement.parameters": "sharded"}))
        self.refuses(ValueError, "fully_shard()", lambda: self.make(config={"placement.parameters": 2}))

    def test_calls_in_the_wrong_order(self):
        model, opt = self.make()
        self.train(model, opt, 0, 1)
        self.refuses(RuntimeError, "resume() comes before", opt.resume)
        self.refuses(
            RuntimeError, "groups", lambda: opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
        )
        opt.close()
        opt.close()
        with self.assertRaises((RuntimeError, ValueError)) as caught:
            opt.masters_digest()
        self.assertIn("closed", str(caught.exception))

    def test_processes_that_cannot_find_each_other_say_what_to_type(self):
        with unittest.mock.patch.dict(os.environ, {"WORLD_SIZE": "2", "RANK": "1"}):
            self.refuses(RuntimeError, "nearstep-run --nproc-per-node 2", self.make)
        self.assertFalse(self.path.exists())

    def test_an_interrupt_in_a_step_ends_as_an_interrupt(self):
        script = self.folder / "interrupted.py"
        script.write_text(
            "import sys, torch, nearstep\nlinear = torch.nn.Linear(4, 4)\n"
            "def close(self): raise RuntimeError('half a step')\nnearstep.AdamW.close = close\n"
            "opt = nearstep.AdamW(linear.parameters(), lr=1e-3, path=sys.argv[1])\nraise KeyboardInterrupt\n"
        )
        done = subprocess.run(
            [sys.executable, script, self.path], text=True, capture_output=True, timeout=launcher.WORKERS_LIMIT_S
        )
        self.assertEqual(done.returncode, -signal.SIGINT, done.stderr)
        self.assertNotIn("half a step", done.stderr)


class Shown(Package):
    def test_state_in_memory(self):
        config = {"checkpoint.path": str(self.folder / "checkpoints"), "csd.speed": "auto"}
        model, opt = self.make(networks.Layers(2, 400), config={**config, "csd.tiers.memory": 0.002})
        said = self.said_by(lambda: self.train(model, opt, 0, 1))
        opt.close()
        self.assert_states(said, "80 %", "20 %")
        memory = re.search(r"in (/dev/shm/nearstep-\S+);", said)[1]
        self.assertEqual(os.listdir(memory), ["rank-0.device-1.state"])
        _, opt = self.make(networks.Layers(2, 400), config={**config, "csd.tiers": {"memory": 5}})
        self.assertEqual(opt.resume(), 1)  # all of it
        opt.close()
        self.assertFalse(any(".state" in name and os.path.getsize(self.path / name) for name in os.listdir(self.path)))
        _, opt = self.make(networks.Layers(2, 400), config={**config, "csd.tiers.gpu": 5}, durability="checkpoint")
        self.refuses(ValueError, ("tiers.gpu", 5, "rank 0"), opt.resume)
        _, opt = self.make(networks.Layers(2, 400))
        self.assertEqual(opt.resume(), 1)  # without the key, all of it moves to the drive
        self.assertFalse(os.path.exists(memory))

    def test_the_start_says_what_to_expect(self):
        model, opt = self.make(config={"csd.rated_tbw": 100})
        line, *others = self.said_by(lambda: self.train(model, opt, 0, 2)).splitlines()
        self.assertEqual([one for one in others if not one.startswith("nearstep: ")], [])
        if not str(self.path).startswith("/dev/shm"):
            self.assertRegex(
                others[0], r"drive: .* takes \S+ [kM]B of state of .* free, and each step writes \S+ [kM]B"
            )
            self.assertRegex(others[0], r"; it is rated for 100 TB: enough for \S+ steps, or \S+ days at")
            self.assertRegex(others[0], r"; state=\"compact\" takes \S+ [kM]B and writes \S+ [kM]B$")
        facts = opt._conductor.facts()
        tiles = -(-sum(p.numel() for p in model.parameters()) // 65536)
        self.assertEqual(facts["state_bytes"], tiles * 65536 * 12)
        self.assertGreater(facts["start_s"], 0)
        updates = float(re.search(r", and its drives are rated for (\S+) updates", line)[1])
        self.assertAlmostEqual(updates * facts["state_bytes"] / 1e14, 1, places=2)
        opt.finish()
        self.assertIn(f"norm {opt.stats()['norm']:.3g}, update ", opt.progress())


if __name__ == "__main__":
    launcher.main()
