"""Sums of gradients in host memory: threads of the host add what waits there, the GPU adds the rest, and the bits are
those of adding one gradient after the other. offload.host_sums_test tests the threads themselves.
NEARSTEP_TEST_DEVICE=cuda: with a GPU."""

import random
import time
import types
import unittest
import unittest.mock

import launcher

launcher.need()

import torch  # noqa: E402

from nearstep import _engine  # noqa: E402
from nearstep._gradients import host_sums, lent  # noqa: E402
from nearstep._pinned import PinnedMemory  # noqa: E402

DEVICE = torch.device(launcher.DEVICE)
FORMATS = (torch.bfloat16, torch.float16, torch.float32)
SHAPES = ((1025,), (), (3, 700), (1,), (2048,))


def in_order(gradients, dtype=torch.float32):
    total = gradients[0]
    for gradient in gradients[1:]:
        total = (total.float() + gradient.float()).to(dtype)
    return total


class Recorded:
    """The engine's sums, which note of each gradient whether it waits for the next one of its place."""

    def __init__(self, adders):
        self._adders, self.waits = adders, []

    def __getattr__(self, name):
        return getattr(self._adders, name)

    def add(self, *gradient):
        self.waits.append(not gradient[-1])
        self._adders.add(*gradient)


class HostSums(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.params = [torch.empty(shape, dtype=torch.bfloat16, device=DEVICE) for shape in SHAPES]
        self.blocks = [types.SimpleNamespace(tensors=[0, 1]), types.SimpleNamespace(tensors=[2, 3, 4])]
        self.sums = None

    def room(self, size=1 << 20, share=1):
        """Makes sums. ``size``: bytes for gradients that wait; None: as ever, for this share of a pass's."""
        if self.sums is not None:
            self.sums.close()
        self.addCleanup(lambda: self.sums.close())
        encodes = DEVICE.type == "cuda" and _engine.has_gpu_kernels()
        self.sums = host_sums.HostSums(None, DEVICE, self.params, self.blocks, torch.float32, encodes, share)
        self.sums.reserve(range(len(self.blocks)))
        self.memory = self.sums._waited_room.result() if size is None else PinnedMemory(size, DEVICE)
        self.sums._give_room(self.memory.memory)
        self.sums._adders = Recorded(self.sums._adders)

    def assert_nothing_waits(self):
        """Checks that no gradient waits: the room is whole again."""
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        if whole := self.sums._room.numel() // 512 * 512:
            self.assertIsNotNone(self.sums._adders.room_for(whole))

    def gradients(self, i, formats):
        return [(torch.randn(SHAPES[i], device=DEVICE) * 10 ** (k % 4)).to(one) for k, one in enumerate(formats)]

    def begin(self, i, gradients):
        """Puts and adds all of them. Returns the place."""
        place = self.sums.put(int(i > 1), i, gradients[0])
        for gradient in gradients[1:]:
            self.assertIs(self.sums.add(place, gradient), place)
        return place

    def waits(self):
        """Whether each gradient so far waits for the next one."""
        return self.sums._adders.waits

    def take(self, place, gradient=None):
        found = self.sums.take(place, gradient)
        with self.sums.joined([found]):
            found = found.clone()
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        return found

    def check(self, steps=3, passes=6, knows=False):
        """``knows``: how many gradients are to come."""
        chosen = random.Random(1)
        for _ in range(steps):
            formats = [[chosen.choice(FORMATS) for _ in range(passes)] for _ in SHAPES]
            gradients = [self.gradients(i, formats[i]) for i in range(len(SHAPES))]
            places = [self.sums.put(int(i > 1), i, gradients[i][0]) for i in range(len(SHAPES))]
            for k in range(1, passes - 1):
                for i, place in enumerate(places):
                    self.sums.add(place, gradients[i][k], passes - 1 - k if knows else None)
            for i, place in enumerate(places):
                last = gradients[i].pop()
                # One parameter has a gradient less.
                found, wanted = (
                    (self.take(place, last), in_order([*gradients[i], last]))
                    if i
                    else (self.take(place), in_order(gradients[i]))
                )
                self.assertEqual(
                    (found.dtype, found.shape, found.device.type), (torch.float32, wanted.shape, DEVICE.type)
                )
                self.assertTrue(torch.equal(found, wanted), i)

    def counted(self):
        """Counts what PyTorch adds: on a GPU, or where that would."""
        mock = unittest.mock.patch.object(host_sums, "add", side_effect=host_sums.add)
        self.addCleanup(mock.stop)
        return mock.start()

    # --- Bits ---

    def test_with_room_the_host_adds(self):
        on_gpu = self.counted()
        self.room()
        gradients = self.gradients(0, FORMATS)
        place, wanted = self.begin(0, gradients), in_order(gradients)
        while not torch.equal(place.memory, wanted.cpu()):
            time.sleep(0.001)
        self.assertTrue(torch.equal(self.take(place), wanted))
        on_gpu.assert_not_called()

    def test_any_room_gives_the_same_bits(self):
        for size in (1 << 20, None, 512, 1024, 2560, 0):
            with self.subTest(size):
                self.room(size)
                self.check()
                self.check(knows=True)
                self.assert_nothing_waits()

    def test_without_room_the_gpu_adds(self):
        on_gpu = self.counted()
        self.room(0)
        self.check(steps=1)
        self.assertEqual(on_gpu.call_count, (6 - 1) * len(SHAPES) - 1)

    def test_one_gradient_keeps_its_format_and_is_added_to_in_place(self):
        self.room()
        for one in FORMATS:
            (gradient,) = self.gradients(0, [one])
            found = self.take(self.begin(0, [gradient]))
            self.assertEqual(found.dtype, one)
            self.assertTrue(torch.equal(found, gradient))

    def test_gradients_wait_for_the_next_ones_half_of_them_in_each_pass(self):
        self.room()
        passes = 8
        gradients = {i: self.gradients(i, [torch.bfloat16] * passes) for i in (0, 2)}  # of both blocks
        places = {i: self.sums.put(int(i > 1), i, of[0]) for i, of in gradients.items()}
        for to_come in range(passes - 2, 0, -1):
            for i, place in places.items():
                self.sums.add(place, gradients[i][passes - 1 - to_come], to_come)
                self.assertEqual(self.waits()[-1], to_come % 2 != place.turn and to_come > 1)
        self.assertEqual(sorted(sum(self.waits()[i :: len(places)]) for i in range(len(places))), [2, 3])
        for i, place in places.items():
            self.assertTrue(torch.equal(self.take(place, gradients[i][-1]), in_order(gradients[i])))

    def test_with_little_room_gradients_do_not_wait_for_the_next_ones(self):
        self.room(None, share=0.5)
        place = self.begin(4, self.gradients(4, FORMATS[:1]))
        for to_come in (6, 5, 4):
            self.sums.add(place, self.gradients(4, FORMATS[:1])[0], to_come)
        self.assertEqual(set(self.waits()), {False})

    def test_the_gpu_adds_what_no_thread_has_begun(self):
        """Each gradient waits for one that does not come before the sum is taken."""
        on_gpu = self.counted()
        for ends_with_gradient in (True, False):
            on_gpu.reset_mock()
            self.room()
            gradients = self.gradients(1, FORMATS)
            place = self.sums.put(0, 1, gradients[0])
            last = gradients[-1] if ends_with_gradient else None
            for gradient in gradients[1 : len(gradients) - ends_with_gradient]:
                self.sums.add(place, gradient, 2 + (place.turn + 1) % 2)
            self.assertEqual(self.waits(), [True] * (len(gradients) - 1 - ends_with_gradient))
            self.assertTrue(torch.equal(self.take(place, last), in_order(gradients)))
            self.assertEqual(on_gpu.call_count, len(FORMATS) - 1)
            self.assert_nothing_waits()

    # --- Steps that end early ---

    def test_a_step_that_is_dropped_leaves_nothing_behind(self):
        for to_come in (None, 3):  # threads add at once, or gradients wait for the next one
            self.room()
            first, *others = self.gradients(0, FORMATS)
            place = self.sums.put(0, 0, first)
            for gradient in others:
                self.sums.add(place, gradient, to_come)
            gradients = self.gradients(0, [torch.bfloat16] * 2)
            self.assertTrue(torch.equal(self.take(self.begin(0, gradients)), in_order(gradients)))
            self.assert_nothing_waits()

    # --- Memory that the engine lends ---

    def test_sums_lie_in_lent_memory_once_the_engine_has_read_it(self):
        lends = lent.Lent([{0: 4608, 1: 512}, {2: 8704, 3: 512, 4: 8192}], [[4608, 13312], [512, 8192]])
        memory = [torch.full((size,), 7, dtype=torch.uint8) for size in (13312, 8192)]
        engine = types.SimpleNamespace(
            lent_memory=lambda: memory, finish=unittest.mock.Mock(side_effect=lambda: seen.append(int(memory[0].sum())))
        )
        self.sums = host_sums.HostSums(
            engine, torch.device("cpu"), self.params, self.blocks, torch.float32, False, 0, lent=lends
        )
        self.addCleanup(lambda: self.sums.close())
        for _ in range(2):
            seen, before = [], int(memory[0].sum())
            self.sums.begin_step()
            for i in (2, 1, 0):
                gradients = [one.cpu() for one in self.gradients(i, [torch.float32] * 3)]
                place = self.begin(i, gradients)
                self.assertTrue(torch.equal(self.take(place), in_order(gradients)))
                is_lent = place.memory.untyped_storage().data_ptr() == memory[0].untyped_storage().data_ptr()
                self.assertEqual(is_lent, i != 0, "the engine has no room for one")
            self.assertEqual(seen, [before], "before the step's first sum, and once")
        before = memory[0].clone()
        with unittest.mock.patch.object(host_sums._ranks, "is_fork", lambda: True):
            self.assertRaisesRegex(RuntimeError, "fork", self.sums.put, 1, 2, torch.ones(SHAPES[2]))
        self.assertTrue(torch.equal(memory[0], before), "the parent's")

    def test_a_sum_lies_where_the_engine_puts_what_has_left(self):
        chosen = random.Random(2)
        for _ in range(300):
            sizes, at, ends = [], 0, [[] for _ in range(chosen.randrange(4))]
            for _ in range(chosen.randrange(1, 6)):
                sizes.append({at + k: 512 * chosen.randrange(9) for k in range(chosen.randrange(1, 5))})
                at += len(sizes[-1])
                for of_blocks in ends:
                    of_blocks.append((of_blocks or [0])[-1] + 64 * chosen.randrange(60))
            lends = lent.Lent(sizes, ends)
            taken = [set() for _ in ends]
            for block, of_block in enumerate(sizes):
                for i in filter(lends.__contains__, of_block):
                    number, begin = lends._places[i]
                    mine = set(range(begin // 512, (begin + of_block[i]) // 512))
                    self.assertEqual((begin % 512, mine & taken[number]), (0, set()))
                    self.assertLessEqual(begin + of_block[i], ends[number][block])
                    self.assertGreaterEqual(begin, 0)
                    taken[number] |= mine
            self.assertEqual(lends.bytes, 512 * sum(map(len, taken)))

    # --- Parts ---

    def test_host_memory_for_gradients_that_wait_is_bounded(self):
        params = [torch.empty(1000, dtype=torch.bfloat16), torch.empty(5000, dtype=torch.float16)]
        self.assertEqual(host_sums.bytes_of_waiting(params, 0.5), 10240)  # the largest
        self.assertEqual(host_sums.bytes_of_waiting(params * 3, 0.5), (2048 + 10240) * 3 // 2)
        self.assertEqual(host_sums.bytes_of_waiting(params * 3), (2048 + 10240) * 3)
        self.assertEqual(host_sums.bytes_of_waiting([]), 0)
        with unittest.mock.patch.object(host_sums, "_engine", types.SimpleNamespace(free_host_memory=lambda: 1000)):
            self.assertEqual(
                [host_sums.bounded_by_free(*of) for of in ((100, 0), (900, 0), (900, 600), (900, 2000))],
                [100, 250, 100, 0],
            )
        self.assertGreater(_engine.free_host_memory(), 0)


if __name__ == "__main__":
    launcher.main()
