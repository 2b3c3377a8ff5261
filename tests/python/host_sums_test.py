"""Sums of gradients in host memory: threads of the host add what waits there, the GPU adds the rest, and the bits are
those of adding one gradient after the other. NEARSTEP_TEST_DEVICE=cuda: with a GPU."""

import itertools
import random
import threading
import types
import unittest
import unittest.mock

import launcher

launcher.need()

import torch  # noqa: E402

from nearstep import _engine  # noqa: E402
from nearstep._gradients import host_sums, waiting  # noqa: E402
from nearstep._model.groups import DTYPES  # noqa: E402
from nearstep._pinned import PinnedMemory  # noqa: E402

DEVICE = torch.device(launcher.DEVICE)
FORMATS = (torch.bfloat16, torch.float16, torch.float32)
SHAPES = ((1025,), (), (3, 700), (1,), (2048,))


def in_order(gradients, dtype=torch.float32):
    total = gradients[0]
    for gradient in gradients[1:]:
        total = (total.float() + gradient.float()).to(dtype)
    return total


class HostSums(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        self.params = [torch.empty(shape, dtype=torch.bfloat16, device=DEVICE) for shape in SHAPES]
        self.blocks = [types.SimpleNamespace(tensors=[0, 1]), types.SimpleNamespace(tensors=[2, 3, 4])]
        self.sums = host_sums.HostSums(
            None,
            DEVICE,
            self.params,
            self.blocks,
            torch.float32,
            DEVICE.type == "cuda" and _engine.has_gpu_kernels(),
        )
        self.addCleanup(lambda: self.sums.close())

    def room(self, size=1 << 20):
        """``size``: bytes for gradients that wait; None: as ever."""
        self.sums.reserve(range(len(self.blocks)))
        self.memory = self.sums._waited_room.result() if size is None else PinnedMemory(size, DEVICE)
        self.sums._room = waiting.WaitingRoom(self.memory.memory)

    def assert_nothing_waits(self, size):
        """Checks that no gradient waits: the room is whole again."""
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        self.assertEqual(self.sums._room.take(torch.empty(size, dtype=torch.uint8)).nbytes, size)

    def gradients(self, i, formats):
        return [(torch.randn(SHAPES[i], device=DEVICE) * 10 ** (k % 4)).to(one) for k, one in enumerate(formats)]

    def begin(self, i, gradients):
        """Puts and adds all of them. Returns the place."""
        place = self.sums.put(int(i > 1), i, gradients[0])
        for gradient in gradients[1:]:
            self.assertIs(self.sums.add(place, gradient), place)
        return place

    def idle(self, place):
        """Waits until nothing waits for the place."""
        if (job := place.job) is not None:
            job.result(60)

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
        """Counts what threads add and what the GPU's code adds."""
        counts = {"host": [], "gpu": 0}
        on_host, on_gpu = waiting.add_on_host, host_sums.add

        def add_on_host(place, gradients):
            counts["host"].append(len(gradients))
            on_host(place, gradients)

        def add(*of):
            counts["gpu"] += 1
            return on_gpu(*of)

        for where, name, function in ((waiting, "add_on_host", add_on_host), (host_sums, "add", add)):
            patch = unittest.mock.patch.object(where, name, function)
            patch.start()
            self.addCleanup(patch.stop)
        return counts

    def late(self):
        """Threads wait before they add. Returns an event after which one has begun, and one that lets them go on."""
        self.room()
        begun, goes_on, on_host = threading.Event(), threading.Event(), waiting.add_on_host
        self.addCleanup(goes_on.set)

        def add_on_host(place, gradients):
            begun.set()
            goes_on.wait(launcher.WORKERS_LIMIT_S)
            on_host(place, gradients)

        patch = unittest.mock.patch.object(waiting, "add_on_host", add_on_host)
        patch.start()
        self.addCleanup(patch.stop)
        return begun, goes_on

    # --- Bits ---

    def test_with_room_the_host_adds(self):
        counts = self.counted()
        self.room()
        place = self.begin(0, self.gradients(0, FORMATS))
        self.idle(place)
        self.assertEqual((sum(counts["host"]), counts["gpu"]), (len(FORMATS) - 1, 0))
        self.assertEqual(place.waiting, [])

    def test_any_room_gives_the_same_bits(self):
        for size in (1 << 20, None, 512, 1024, 2560, 0):
            with self.subTest(size):
                self.room(size)
                self.check()
                self.check(knows=True)
                whole = self.sums._room._memory.numel() // 512 * 512
                self.assert_nothing_waits(whole)

    def test_without_room_the_gpu_adds(self):
        counts = self.counted()
        self.room(0)
        self.check(steps=1)
        self.assertEqual(counts["host"], [])
        self.assertGreater(counts["gpu"], 0)

    def test_one_gradient_keeps_its_format_and_is_added_to_in_place(self):
        self.room()
        for one in FORMATS:
            (gradient,) = self.gradients(0, [one])
            found = self.take(self.begin(0, [gradient]))
            self.assertEqual(found.dtype, one)
            self.assertTrue(torch.equal(found, gradient))

    def test_threads_that_are_late_add_several_gradients_at_once(self):
        counts, (begun, goes_on) = self.counted(), self.late()
        gradients = self.gradients(0, (torch.bfloat16, *FORMATS))
        place = self.begin(0, gradients[:2])
        self.assertTrue(begun.wait(launcher.WORKERS_LIMIT_S))
        for gradient in gradients[2:]:
            self.sums.add(place, gradient)
        goes_on.set()
        self.idle(place)
        self.assertEqual(counts["host"], [1, 2])
        self.assertTrue(torch.equal(self.take(place), in_order(gradients)))

    def test_gradients_wait_for_the_next_ones_half_of_them_in_each_pass(self):
        counts = self.counted()
        self.room()
        passes = 8
        formats = [torch.bfloat16] * passes
        gradients = {i: self.gradients(i, formats) for i in (0, 2)}  # of both blocks
        places = {i: self.sums.put(int(i > 1), i, of[0]) for i, of in gradients.items()}
        self.assertNotEqual(*(place.turn for place in places.values()))
        added = {i: [] for i in places}
        for k in range(1, passes - 1):
            for i, place in places.items():
                self.sums.add(place, gradients[i][k], passes - 1 - k)
                self.idle(place)
                added[i] += counts["host"]
                counts["host"].clear()
        self.assertEqual(sorted(added.values()), [[1, 2, 2, 1], [2, 2, 2]])
        for i, place in places.items():
            self.assertEqual(place.waiting, [], "before the last pass")
            self.assertTrue(torch.equal(self.take(place, gradients[i][-1]), in_order(gradients[i])))

    def test_with_little_room_gradients_do_not_wait_for_the_next_ones(self):
        self.sums._waiting_share = 0.5
        self.room(None)
        place = self.begin(4, self.gradients(4, FORMATS[:2]))
        for to_come in (6, 5, 4):
            self.sums.add(place, self.gradients(4, FORMATS[:1])[0], to_come)
            self.idle(place)
            self.assertEqual(place.waiting, [])

    def test_the_gpu_waits_for_the_thread_that_adds_to_the_same_place(self):
        begun, goes_on = self.late()
        gradients = self.gradients(0, FORMATS)
        place = self.begin(0, gradients[:2])
        self.assertTrue(begun.wait(launcher.WORKERS_LIMIT_S))
        timer = threading.Timer(0.2, goes_on.set)
        timer.start()
        self.assertTrue(torch.equal(self.take(place, gradients[2]), in_order(gradients)))
        timer.join()

    def test_the_gpu_adds_what_no_thread_has_begun(self):
        """All threads are at other work; the place's job is taken back, and nobody waits for them."""
        counts, goes_on = self.counted(), threading.Event()
        self.addCleanup(goes_on.set)
        self.room()
        busy = [self.sums._adders._pool.submit(goes_on.wait, 60) for _ in range(self.sums._adders._pool._max_workers)]
        for ends_with_gradient in (True, False):
            gradients = self.gradients(0, FORMATS)
            place = self.begin(0, gradients[:-1] if ends_with_gradient else gradients)
            found = self.take(place, gradients[-1] if ends_with_gradient else None)
            self.assertTrue(torch.equal(found, in_order(gradients)))
        self.assertEqual((counts["host"], counts["gpu"]), ([], 2 * (len(FORMATS) - 1)))
        self.assertFalse(any(one.done() for one in busy))

    # --- Steps that end early ---

    def test_a_step_that_is_dropped_leaves_nothing_behind(self):
        goes_on = threading.Event()
        self.addCleanup(goes_on.set)
        for is_busy in (False, True):
            self.room()
            if is_busy:
                for _ in range(self.sums._adders._pool._max_workers):
                    self.sums._adders._pool.submit(goes_on.wait, 60)
            self.begin(0, self.gradients(0, FORMATS))
            gradients = self.gradients(0, [torch.bfloat16] * 2)
            self.assertTrue(torch.equal(self.take(self.begin(0, gradients)), in_order(gradients)))
            self.assert_nothing_waits(self.sums._room._memory.numel() // 512 * 512)

    def test_an_error_in_a_thread_reaches_the_program(self):
        for then in ("add", "take", "put"):
            self.sums.close()
            self.sums = host_sums.HostSums(None, DEVICE, self.params, self.blocks, torch.float32, False)
            self.room()
            with unittest.mock.patch.object(waiting, "add_on_host", side_effect=MemoryError("of a thread")):
                place = self.begin(0, self.gradients(0, FORMATS[:2]))
                self.idle(place)
                where = (0, 0) if then == "put" else (place,)
                with self.assertRaisesRegex(MemoryError, "of a thread"):
                    getattr(self.sums, then)(*where, self.gradients(0, FORMATS[:1])[0])

    def test_close_ends_threads_that_have_work(self):
        self.room()
        for i in range(len(SHAPES)):
            self.begin(i, self.gradients(i, FORMATS))
        self.sums.close()
        self.assertFalse([one for one in threading.enumerate() if one.name.startswith("nearstep-adds")])

    # --- Parts ---

    def test_the_room_is_whole_again_in_whichever_order_gradients_leave(self):
        room, chosen = waiting.WaitingRoom(torch.empty(64 * 512, dtype=torch.uint8)), random.Random(1)
        held = []
        for _ in range(2000):
            if (
                chosen.random() < 0.6
                and (one := room.take(torch.empty(chosen.choice((0, 1, 300, 2000)), dtype=chosen.choice(FORMATS))))
                is not None
            ):
                held.append((one, chosen.randrange(100)))
                one.fill_(held[-1][1])
            elif held:
                one, value = held.pop(chosen.randrange(len(held)))
                self.assertTrue((one == value).all(), "nobody else has its memory")
                room.give_back([one])
        room.give_back([one for one, _ in held])
        self.assertEqual(room._free, [(0, 64 * 512)])

    def test_the_host_adds_any_number_of_values(self):
        if DEVICE.type == "cuda":
            self.skipTest("of host memory")
        for count, first, dtype in itertools.product(
            (0, 1, 7, 1023, 1024, 1025, 4099), FORMATS, (torch.float32, torch.bfloat16)
        ):
            if first.itemsize > dtype.itemsize:
                continue
            gradients = [torch.randn(count).to(one) for one in (first, *FORMATS)]
            for one in gradients:
                one[count // 2 : count // 2 + 1] = float("inf")
            sums = torch.full((count + 1,), 7.0, dtype=dtype)
            # The first gradient is at the end of the sums' memory.
            place = sums[:count].view(first)[-count:] if count else sums[:0].view(first)
            place.copy_(gradients[0])
            pieces = [(one.data_ptr(), DTYPES[one.dtype]) for one in (place, *gradients[1:])]
            _engine.add_on_host(sums.data_ptr(), DTYPES[dtype], pieces, count)
            self.assertTrue(torch.equal(sums[:count], in_order(gradients, dtype)), (count, first, dtype))
            self.assertEqual(sums[count], 7, "behind the sums")
        self.assertRaises(RuntimeError, _engine.add_on_host, 0, "fp32", [], 1)

    def test_host_memory_for_gradients_that_wait_is_bounded(self):
        params = [torch.empty(1000, dtype=torch.bfloat16), torch.empty(5000, dtype=torch.float16)]
        self.assertEqual(waiting.bytes_of_waiting(params, 0.5), 10240)  # the largest
        self.assertEqual(waiting.bytes_of_waiting(params * 3, 0.5), (2048 + 10240) * 3 // 2)
        self.assertEqual(waiting.bytes_of_waiting(params * 3), (2048 + 10240) * 3)
        self.assertEqual(waiting.bytes_of_waiting([]), 0)
        with unittest.mock.patch.object(waiting, "_engine", types.SimpleNamespace(free_host_memory=lambda: 1000)):
            self.assertEqual(
                [waiting.bounded_by_free(*of) for of in ((100, 0), (900, 0), (900, 600), (900, 2000))],
                [100, 250, 100, 0],
            )
        self.assertGreater(_engine.free_host_memory(), 0)


if __name__ == "__main__":
    launcher.main()
