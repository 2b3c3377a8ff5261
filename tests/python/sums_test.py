"""Sums of gradients over several backward passes: on the GPU, in host memory, or some here and some there, with the
same bits. One process, one rank; NEARSTEP_TEST_DEVICE=cuda: on a GPU."""

import contextlib
import io
import re
import unittest
import unittest.mock

import launcher
from package import Package

import torch

import nearstep
from nearstep._gradients import host_sums
from nearstep._gradients.room import Memory, Room

WIDTH = 270  # a layer has more than one tile
LAYERS = 10
PASSES = 3
GB = 10**9
DEVICE = launcher.DEVICE


def network(dtype):
    torch.manual_seed(1)
    return torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS))
    ).to(DEVICE, dtype)


def backward(model, number):
    given = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number)).to(
        DEVICE, next(model.parameters()).dtype
    )
    (model(given).float() - 1).square().mean().backward()


class Sums(Package):
    def made(self, dtype=None, **settings):
        model = network(dtype or torch.bfloat16)
        _, opt = self.make(
            model,
            nearstep.AdamW,
            lr=1e-2,
            path=self.folder / f"state-{len(self.opened)}",
            config={},
            **{"accumulation": PASSES, **settings},
        )
        opt.resume()
        return model, opt, opt._intake._sums

    def train(self, model, opt, steps, between=lambda step, number: None, passes=PASSES):
        for step in range(steps):
            for number in range(passes):
                backward(model, 10 * step + number)
                between(step, number)
            opt.step()
            opt.zero_grad()
        return opt.masters_digest()

    def everywhere(self, sums, is_on_host):
        """The private switch: in place of a decision by the memory."""
        sums._room = None
        sums._on_host = [bool(is_on_host(block)) for block in range(len(sums._on_host))]

    def test_sums_have_the_same_bits_wherever_they_are(self):
        """Sums in bfloat16 have those of PyTorch, which adds to p.grad."""
        halves = {"accumulation_dtype": torch.bfloat16}
        for dtype, of_sums in ((torch.bfloat16, {}), (torch.float32, {}), (torch.bfloat16, halves)):
            digests = set()
            for is_on_host in (lambda block: False, lambda block: True, lambda block: block % 2):
                for settings in ({}, {"accumulation": None}):  # gradients leave in backward, or, at first, in step()
                    model, opt, sums = self.made(dtype, **of_sums, **settings)
                    self.everywhere(sums, is_on_host)
                    digests.add(self.train(model, opt, 3))
            if of_sums:
                model, opt, _ = self.made(dtype, keep_gradients=True)
                digests.add(self.train(model, opt, 3))
            self.assertEqual(len(digests), 1, (dtype, of_sums))

    def test_sums_in_bfloat16_are_of_gradients_in_bfloat16(self):
        for dtype, wanted in ((torch.float32, torch.bfloat16), (torch.bfloat16, torch.float16), (None, "bfloat16")):
            self.assertRaisesRegex(
                ValueError, "accumulation_dtype", lambda: self.made(dtype, accumulation_dtype=wanted)
            )

    def test_sums_that_move_within_a_step_keep_their_bits(self):
        model, opt, sums = self.made()
        self.everywhere(sums, lambda block: False)
        expected = self.train(model, opt, 3)
        for of_pass in range(PASSES - 1):
            model, opt, sums = self.made()
            self.everywhere(sums, lambda block: False)

            def move(step, number):
                if (step, number) == (1, of_pass):
                    self.assertGreater(sums._move(1), 0)

            self.assertEqual(self.train(model, opt, 3, move), expected)

    def test_a_step_that_is_dropped_leaves_no_sum_behind(self):
        digests = set()
        for is_on_host in (False, True):
            model, opt, sums = self.made()
            self.everywhere(sums, lambda block: is_on_host)
            self.train(model, opt, 1)
            for passes in range(1, PASSES):
                for number in range(passes):
                    backward(model, 100 + number)
                opt.zero_grad()
            digests.add(self.train(model, opt, 2))
        self.assertEqual(len(digests), 1)

    def test_room_for_gradients_that_wait_changes_no_bit(self):
        digests = set()
        for size in (None, 3 * 2 * WIDTH * WIDTH, 0):  # as ever, of three weights, none
            with contextlib.ExitStack() as patched:
                if size is not None:
                    patched.enter_context(
                        unittest.mock.patch.object(host_sums, "bounded_by_free", lambda wanted, taken, size=size: size)
                    )
                found, room_for = [], host_sums.HostSums._room_for
                patched.enter_context(
                    unittest.mock.patch.object(
                        host_sums.HostSums, "_room_for", lambda *of: found.append(room_for(*of)) or found[-1]
                    )
                )
                model, opt, sums = self.made(accumulation=5)
                self.everywhere(sums, lambda block: True)
                digests.add(self.train(model, opt, 2, passes=5))
                opt.close()
                self.assertEqual(any(one is not None for one in found), size != 0)
        self.assertEqual(len(digests), 1)

    # --- The decision ---

    def decided(self, measure, **room):
        """Trains with what the GPU is said to have. Returns the optimizer's sums, its digest and what was printed."""
        model, opt, sums = self.made()
        sums._room = Room(lambda: measure(sums), **room)
        printed = io.StringIO()
        with contextlib.redirect_stderr(printed):
            digest = self.train(model, opt, 2)
        return sums, digest, printed.getvalue()

    def test_the_memory_that_a_pass_leaves_decides(self):
        digests = set()
        for free, least, most in ((60 * GB, 0, 0), (0, LAYERS, LAYERS)):
            sums, digest, said = self.decided(lambda _: Memory(20 * GB, 40 * GB, 40 * GB, 42 * GB, free))
            self.assertTrue(least <= sum(sums._on_host) <= most, (sums._on_host, said))
            self.assertEqual(
                len(re.findall(r"[\d.e-]+ GB", said)), 3 if most else 2, said
            )  # on the GPU, and on the host with copies, or too many
            digests.add(digest)
        size, way = sums._host.bytes_of(0), sums._host.bytes_on_the_way
        for share in (1, 2, 3):  # blocks that find room

            def measure(sums):
                here = sums._bytes_here()
                return Memory(here, here, here, here, way + share * size + size // 2 - here)

            sums, digest, said = self.decided(measure)
            self.assertEqual(LAYERS - sum(sums._on_host), share, said)
            digests.add(digest)
        self.assertEqual(len(digests), 1)

    def test_memory_that_the_program_takes_later_moves_sums(self):
        much, little = Memory(GB, 2 * GB, 2 * GB, 2 * GB, 10 * GB), Memory(2 * GB, 2 * GB, 2 * GB, 2 * GB, 0)
        count = 2 * LAYERS + 1  # at the first pass's gradients, and at the decision
        told = iter([much] * count)
        sums, digest, said = self.decided(lambda _: next(told, little))
        self.assertTrue(any(sums._on_host), said)
        self.assertIn("GPU memory is short", said)
        model, opt, _ = self.made()
        self.assertEqual(digest, self.train(model, opt, 2))

    def test_gradients_on_their_way_may_take_a_part_of_what_backward_has_set_free(self):
        for active, limit, engine, spare in (
            (20, None, 0, 10),
            (60, None, 0, 0),
            (70, None, 0, 0),
            (20, 50, 2, 7),
            (20, 90, 0, 10),
            (50, 50, 2, 0),
        ):
            now = Memory(10 * GB, 30 * GB, 40 * GB, 40 * GB, 20 * GB, active * GB)
            self.assertEqual(Room(lambda: now, limit and limit * GB, engine * GB).spare(), spare * GB, (active, limit))

    def test_cuda_is_not_asked_for_each_gradient(self):
        measure = unittest.mock.Mock(return_value=Memory(10 * GB, 30 * GB, 40 * GB, 40 * GB, 20 * GB, 20 * GB))
        with unittest.mock.patch("time.monotonic") as clock:
            clock.return_value = 100.0
            room = Room(measure)
            self.assertEqual({room.spare() for _ in range(3)}, {10 * GB})
            self.assertEqual(measure.call_count, 1)
            clock.return_value = 100.1
            measure.return_value = Memory(10 * GB, 30 * GB, 40 * GB, 40 * GB, 20 * GB, 40 * GB)
            self.assertEqual(room.spare(), 5 * GB)

    def test_a_limit_that_holds_no_pass_is_refused_with_the_number_that_would_do(self):
        now = Memory(2 * GB, 6 * GB, 6 * GB, 6 * GB, 70 * GB)
        with self.assertRaisesRegex(ValueError, "gpu_memory_gb=5 .* 6 GB") as raised:
            self.decided(lambda _: now, limit=5 * GB)
        least = float(re.search(r"Give more than ([\d.]+) GB", str(raised.exception))[1])
        self.decided(lambda _: now, limit=(least + 0.1) * GB)
        for wrong in (0, -1):
            with self.assertRaisesRegex(ValueError, f"gpu_memory_gb={wrong} "):
                self.made(gpu_memory_gb=wrong)
        with self.assertRaisesRegex(ValueError, "gpu_memory_gb.*stream"):
            self.made(gpu_memory_gb=1, stream=nearstep.Stream(slots=2))

    @unittest.skipIf(DEVICE == "cpu", "there is no GPU")
    def test_a_limit_on_a_gpu(self):
        def refused():
            model, opt, _ = self.made(gpu_memory_gb=1e-3)
            with self.assertRaisesRegex(ValueError, "gpu_memory_gb=0.001 ") as raised:
                self.train(model, opt, 1)
            return float(re.search(r"Give more than ([\d.]+) GB", str(raised.exception))[1])

        # First without a limit: the libraries' own memory counts, and they keep it from their first call on.
        model, opt, sums = self.made()
        digest = self.train(model, opt, 3)
        self.assertFalse(any(sums._on_host))
        one, two = refused(), refused()  # models before this one stay on the GPU
        model, opt, sums = self.made(gpu_memory_gb=two + (two - one) + 5e-4)
        self.assertEqual(self.train(model, opt, 3), digest)
        self.assertTrue(any(sums._on_host))


if __name__ == "__main__":
    launcher.main()
