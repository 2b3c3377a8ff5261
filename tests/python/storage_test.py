"""Models whose parameters stay in storage train to the same bits as those with all in memory. One process, one rank; on
the CPU, where slots are host memory as well."""

import collections
import contextlib
import copy
import errno
import os
import pathlib
import re
import shutil
import signal
import tempfile
import unittest
import unittest.mock
import weakref

import launcher
import stream_test

import torch

import nearstep
import networks
from nearstep._gradients import intake
from nearstep._model import parameters
from nearstep._streaming import activations, spill, streaming, window


HOST_BYTES = intake.Intake.host_bytes


def resident_bytes_at(address):
    """Returns the resident bytes of the mapping that has the address."""
    is_it = False
    with open("/proc/self/smaps") as maps:
        for line in maps:
            if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                is_it = int(found[1], 16) <= address < int(found[2], 16)
            elif is_it and line.startswith("Rss:"):
                return int(line.split()[1]) << 10
    return None


class FromStorage(stream_test.Runs):
    needs_drive = True

    def setUp(self):
        super().setUp()
        self.read = []  # layers
        begin = window.Window._read

        def counted(one, room, layer):
            self.read.append(layer)
            begin(one, room, layer)

        take = window.State.take

        def taken(one, layer):
            self.read.append(layer)
            return take(one, layer)

        for patch in (
            unittest.mock.patch.object(window.Window, "_read", counted),
            unittest.mock.patch.object(window.State, "take", taken),
            unittest.mock.patch.object(streaming, "taken_bytes", lambda _: 0),
            unittest.mock.patch.object(intake.Intake, "host_bytes", lambda *of: 0 * HOST_BYTES(*of)),
        ):  # the limit is of parameters alone
            patch.start()
            self.addCleanup(patch.stop)

    def stream(self, model, rooms, slots=2, **settings):
        """A limit that has room for so many layers."""
        page = window.PAGE
        size = sum(p.numel() * p.element_size() for p in self.layers(model)[0].parameters()) + 2 * page
        size = -(-size // page) * page
        in_layers = {id(p) for layer in self.layers(model) for p in layer.parameters()}
        kept = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in in_layers)
        on_host = 0 if next(model.parameters()).is_cuda else kept + (min(slots, len(self.layers(model))) + 1) * size
        return nearstep.Stream(
            slots=slots, **settings, host_memory_gb=(kept + 2 * (rooms + 0.1) * size + on_host) / 1e9
        )

    def folder_in_memory(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="nearstep-storage-", dir="/dev/shm"))
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def layers(self, model):
        return model.transformer.h if hasattr(model, "transformer") else model.model.layers

    def weights_after(self, model, opt):
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        opt.close()
        return weights

    def test_any_number_of_places_has_the_bits_of_a_resident_model(self):
        """Compares in fp32 and in bf16, whose compact master is the parameter itself, with state on a drive, in memory,
        and in memory with logs on a drive."""
        in_memory = self.folder_in_memory()
        for name, micro_batches, dtype, state in (
            ("gpt2", 2, torch.float32, "fp32"),
            ("llama", 1, torch.bfloat16, "compact"),
            ("llama", 1, torch.bfloat16, "fp32"),
            ("gpt2", 1, torch.float32, "compact"),
        ):
            model = self.model(name).to(dtype)
            settings = {"micro_batches": micro_batches, "state": state}
            resident = self.trained(copy.deepcopy(model), f"resident-{name}-{dtype}-{state}", **settings)
            for rooms, slots, folder, log in (
                (2, 2, self.folder, None),
                (3, 2, in_memory, None),
                (9, 3, self.folder, self.folder / f"logs-{name}-{dtype}-{state}"),
            ):
                with self.subTest(name, dtype=dtype, state=state, rooms=rooms):
                    self.read.clear()
                    streamed = self.trained(
                        copy.deepcopy(model),
                        folder / f"{name}-{dtype}-{state}-{rooms}",
                        self.stream(model, rooms, slots),
                        log=log,
                        **settings,
                    )
                    self.assert_equal_runs(streamed, resident)
                    self.assertEqual(len(set(self.read)), 4, "each layer is read")
                    self.assertGreaterEqual(len(self.read), 4 * 4, "in each step")

    def test_sums_lie_where_the_engine_has_gradients_later(self):
        """State in memory alone lends that memory. Dense gradients take as much as sums, those of q4 a part."""
        in_memory = self.folder_in_memory()
        for codec, dtype, of_sums in (
            ("dense", torch.float32, torch.float32),
            ("q4", torch.bfloat16, torch.bfloat16),
            ("q4", torch.bfloat16, torch.float32),
        ):
            digests = set()
            for number, (folder, devices, has_log, is_streamed) in enumerate(
                (
                    (self.folder, 1, False, False),
                    (self.folder, 2, False, True),
                    (in_memory, 1, False, True),
                    (in_memory, 2, False, True),
                    (self.folder, 2, True, True),
                )
            ):
                name = f"{number}-{codec}-{of_sums}"
                model = networks.Layers(8, 300).to(launcher.DEVICE, dtype)
                _, opt = self.make(
                    nearstep.groups(model),
                    path=folder / name,
                    log=self.folder / f"log-{name}" if has_log else None,
                    stream=nearstep.Stream(slots=2, host_memory_gb=100) if is_streamed else None,
                    devices=devices,
                    codec=codec,
                    accumulation=3,
                    accumulation_dtype=of_sums,
                    config={"csd.subgroup_tiles": 1},
                )
                for step in range(4):
                    for micro in range(3):
                        torch.manual_seed(10 * step + micro)
                        model(torch.randn(4, 300).to(launcher.DEVICE, dtype)).float().square().mean().backward()
                    opt.step()
                    opt.zero_grad()
                sums = of_sums.itemsize * sum(p.numel() for p in opt._session.layout.params)
                share = opt._intake._sums._lent.bytes / sums
                digests.add(opt.masters_digest())
                opt.close()
                with self.subTest(codec, sums=of_sums, devices=devices, in_memory=folder == in_memory, log=has_log):
                    is_lent = folder == in_memory
                    self.assertGreaterEqual(share, (0.7 if codec == "dense" else 0.002) * is_lent)
                    self.assertLessEqual(share, 1.01 * is_lent, "places are padded")
            self.assertEqual(len(digests), 1, (codec, of_sums))

    def test_inputs_of_layers_wait_in_files_when_the_hosts_share_is_full(self):
        model = self.model()
        moved = collections.Counter()
        move = spill._move

        def counted(how, file, memory, offset):
            moved[how.__name__] += 1
            move(how, file, memory, offset)

        resident = self.trained(copy.deepcopy(model), "resident", micro_batches=2)
        with (
            unittest.mock.patch.object(spill, "_move", counted),
            unittest.mock.patch.object(activations, "_pinned_bytes", lambda size: 1 << 19),
        ):
            # Half of the memory is for inputs: one of them, then none.
            for rooms, in_files in ((3, 3), (2, 4)):
                with self.subTest(in_files=in_files):
                    moved.clear()
                    stream = self.stream(model, rooms, activations="host")
                    streamed = self.trained(copy.deepcopy(model), f"{in_files}", stream, micro_batches=2)
                    self.assert_equal_runs(streamed, resident)
                    self.assertEqual(moved, {"pwritev": 4 * 2 * in_files, "preadv": 4 * 2 * in_files})
            moved.clear()
            stream = self.stream(model, 2, activations="host")
            in_memory = self.trained(copy.deepcopy(model), self.folder_in_memory() / "run", stream, micro_batches=2)
            self.assert_equal_runs(in_memory, resident)
            self.assertFalse(moved, "files in memory would take what they are to spare")
        self.assertFalse(list(self.folder.rglob("nearstep-inputs-*")), "the files have no names")

    def test_inputs_that_cannot_be_moved_are_a_sentence(self):
        model = self.model()

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        _, opt = self.make(nearstep.groups(model), stream=self.stream(model, 2, activations="host"))
        with (
            unittest.mock.patch.object(spill, "_move", full),
            unittest.mock.patch.object(activations, "_pinned_bytes", lambda size: 1 << 30),
        ):
            self.refuses(
                RuntimeError, ("No space left on device", "host_memory_gb"), lambda: self.steps(model, opt, 0, 1)
            )

    def assert_one_digest(self, runs):
        """``runs``: the starts of each, by its folder; the first of two is killed."""
        digests = set()
        for folder, starts in runs.items():
            folder.mkdir()
            codes = []
            for arguments in starts:
                worker = launcher.Process(1, "durable_worker.py", folder, 12, *arguments)
                codes.append(worker.wait())
            self.assertEqual(codes, [-signal.SIGKILL, 0][-len(starts) :], worker.text())
            digests.add((folder / "digest").read_text())
        self.assertEqual(len(digests), 1, runs)

    def test_a_killed_run_resumes_from_storage_with_the_same_bits(self):
        """State lies on a drive, or once in memory, or there with logs of its updates on a drive."""
        in_memory = self.folder_in_memory()
        killed = [["--end=kill@0@7", "--from-storage"], ["--from-storage"]]
        runs = {
            self.folder / "whole": [[]],
            self.folder / "killed": killed,
            in_memory / "killed": killed,
            self.folder / "logs": [[*one, "--log"] for one in killed],
        }
        self.assert_one_digest(runs)
        self.assertRegex((self.folder / "killed/starts.txt").read_text(), r"^0 1 0\n0 1 [567]\n$")

    def test_a_run_that_is_killed_amid_its_sums_lacks_no_step(self):
        """The first sums lie where the log of the last update was, which all state has by then."""
        killed = self.folder_in_memory() / "killed"
        runs = {
            self.folder / "whole": [["--passes"]],
            killed: [
                ["--end=sums@0@7", "--from-storage", "--passes"],
                ["--from-storage", "--passes"],
            ],
        }
        self.assert_one_digest(runs)
        self.assertEqual((killed / "starts.txt").read_text(), "0 1 0\n0 1 7\n")

    def test_start_values_leave_the_models_memory_before_the_first_layer_computes(self):
        model = self.model()
        _, opt = self.make(nearstep.groups(model), stream=self.stream(model, 2))
        storages = [weakref.ref(p.untyped_storage()) for layer in self.layers(model) for p in layer.parameters()]
        left = []
        model.transformer.wte.register_forward_hook(lambda *_: left.append(sum(one() is not None for one in storages)))
        self.steps(model, opt, 0, 1)
        self.assertEqual(left[0], 0, f"of {len(storages)} parameters")

    def test_layers_may_be_frozen_in_part_or_whole(self):
        for name, is_trained in (
            ("in part", lambda name: ".mlp." in name or "wte" in name),
            ("whole", lambda name: ".h." not in name),
        ):
            model, runs = self.model(), []
            for key, p in model.named_parameters():
                p.requires_grad_(is_trained(key))
            for stream in (None, self.stream(model, 2)):
                with self.subTest(name, stream=stream is not None):
                    runs.append(self.trained(copy.deepcopy(model), f"{name}-{stream is None}", stream))
            self.assert_equal_runs(*runs)

    def test_the_program_reads_and_changes_parameters_between_steps(self):
        model = self.model()
        runs = []
        for stream in (None, self.stream(model, 2)):
            mine = copy.deepcopy(model)
            _, opt = self.make(nearstep.groups(mine), path=self.folder / f"{stream is None}", stream=stream, config={})
            losses = self.steps(mine, opt, 0, 2)
            with torch.no_grad():
                seen = {name: p.clone() for name, p in mine.state_dict().items()}
                mine.transformer.h[1].mlp.c_fc.weight.mul_(0.5)
                mine.transformer.wpe.weight.add_(0.25)
                mine.eval()(**networks.inputs("gpt2", 2, torch.Generator().manual_seed(1)))
            losses += self.steps(mine.train(), opt, 2, 4)
            opt.export(self.folder / f"exported-{stream is None}")
            loaded = type(model).from_pretrained(self.folder / f"exported-{stream is None}")
            self.assert_equal_tensors(mine.state_dict(), loaded.state_dict())
            digest = opt.masters_digest()
            runs.append((losses, digest, {**seen, **self.weights_after(mine, opt)}))
        self.assert_equal_runs(*runs)
        with torch._C.DisableTorchFunctionSubclass():
            self.assertTrue(
                all(p.isnan().all() for p in mine.transformer.h.parameters()), "their values are in storage alone"
            )

    def test_a_run_moves_to_storage_and_back(self):
        model = self.model()
        whole = self.trained(copy.deepcopy(model), "whole")
        losses, first = [], 0
        for last, rooms in ((1, None), (3, 2), (4, None)):
            with nearstep.empty() if first else contextlib.nullcontext():
                again = type(model)(model.config).train() if first else copy.deepcopy(model)
            _, opt = self.make(nearstep.groups(again), stream=rooms and self.stream(model, rooms))
            self.assertEqual(opt.resume(), first)
            losses += self.steps(again, opt, first, last)
            digest, first = opt.masters_digest(), last
            opt.close()
        self.assertEqual((losses, digest), whole[:2])

    def test_values_that_a_closed_optimizer_has_are_not_drawn_anew(self):
        model = self.model()
        _, opt = self.make(nearstep.groups(model), stream=self.stream(model, 2))
        want = self.steps(model, opt, 0, 2)
        opt.export(self.folder / "exported")
        opt.close()
        for path in (self.folder / "other", self.path):
            _, opt = self.make(nearstep.groups(model), path=path, fresh=True)
            self.refuses(ValueError, ("opt.resume()", "export()"), lambda: self.steps(model, opt, 2, 3))  # noqa: B023
        _, opt = self.make(
            nearstep.groups(model), path=self.folder / "weights", fresh=True, weights=self.folder / "exported"
        )
        self.assertLess(self.steps(model, opt, 0, 1)[0], want[0])
        opt.close()

    def test_start_values_take_no_memory_of_the_hosts(self):
        """Start values of a model in memory go straight into the state, and drawn ones wait in a file."""
        seen = []
        take = parameters.Parameters.take_start

        def seeing(one):
            seen.append(resident_bytes_at(one._vector.data_ptr()))
            take(one)

        for name, dtype in (("alike", torch.bfloat16), ("converted", torch.float32)):
            model = self.model().to(dtype)
            values = {key: p.detach().clone() for key, p in model.named_parameters()}
            with self.subTest(name), unittest.mock.patch.object(parameters.Parameters, "take_start", seeing):
                _, opt = self.make(
                    nearstep.groups(model),
                    path=self.folder / name,
                    stream=self.stream(model, 2),
                    state="fp32",
                    config={},
                )
                self.assertEqual(opt.resume(), 0)
                self.assertLess(seen.pop(), 1 << 16, "of the vector")
                self.assert_equal_tensors(values, {key: p.detach().clone() for key, p in model.named_parameters()})
                opt.close()
        runs = []
        for name in ("resident", "drawn"):
            with nearstep.empty():
                model = type(self.model())(self.model().config).train()
            with unittest.mock.patch.object(parameters.Parameters, "take_start", seeing):
                runs.append(self.trained(model, name, self.stream(model, 2) if name == "drawn" else None))
        self.assertLess(seen.pop(), 1 << 16, "of the vector")
        self.assert_equal_runs(*runs)

    def test_a_folder_without_room_for_start_values_is_named(self):
        with nearstep.empty():
            model = type(self.model())(self.model().config).train()

        def full(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        _, opt = self.make(nearstep.groups(model), stream=self.stream(model, 2))
        with unittest.mock.patch.object(os, "posix_fallocate", full):
            self.refuses(OSError, ("start values", "free space", str(self.path)), opt.resume)
        self.assertFalse(any(self.path.glob("*.manifest")), "refused before the state is written")
        opt.resume()
        self.steps(model, opt, 0, 1)
        opt.close()
        with nearstep.empty():
            again = type(model)(model.config).train()
        _, opt = self.make(nearstep.groups(again), stream=self.stream(again, 2))
        with unittest.mock.patch.object(os, "posix_fallocate", full):
            self.assertEqual(opt.resume(), 1, "a state that is there needs no room for start values")
        opt.close()

    def test_what_cannot_be_in_storage_is_refused(self):
        model = self.model()
        _, opt = self.make(nearstep.groups(model), stream=self.stream(model, 0))
        message = self.refuses(
            ValueError,
            ("host_memory_gb", "slots and gradients" if launcher.DEVICE == "cpu" else "two layers"),
            opt.resume,
        )
        self.assertFalse(any(self.path.glob("*.manifest")), "refused before the state is written")
        self.assertEqual(re.findall(r"(\S+) GB", message)[-1], "0.1", "what would do")
        with unittest.mock.patch.object(intake.Intake, "host_bytes", HOST_BYTES):
            _, opt = self.make(nearstep.groups(model), stream=self.stream(model, 2), accumulation=2)
            message = self.refuses(ValueError, ("host_memory_gb", "accumulation=1"), opt.resume)
        self.assertGreater(
            float(re.findall(r"(\S+) GB", message)[-1]), 4 * sum(p.numel() for p in model.parameters()) / 1e9
        )
        self.refuses(ValueError, "host_memory_gb=0", lambda: nearstep.Stream(slots=2, host_memory_gb=0))
        _, opt = self.make(
            nearstep.groups(model.bfloat16()), stream=self.stream(model, 2), config={"gather.codec": "delta"}
        )
        self.refuses(ValueError, ("host_memory_gb", "gather.codec"), opt.resume)
        worker = launcher.Process(2, "durable_worker.py", self.folder, 1, "--from-storage")
        self.assertNotEqual(worker.wait(), 0)
        self.assert_states(worker.text(), "host_memory_gb", "2 ranks")


if __name__ == "__main__":
    launcher.main()
