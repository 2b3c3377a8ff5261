"""DeepSpeed's NVMe optimizer swap, one step at a time; bench/peer starts it in the peer's environment.

Prints a JSON line that names its rows. For each row name on stdin it runs a turn, compares values with AdamW in double
precision, and prints a JSON line. All rows have fp32 state and fp32 gradients:
  default  the buffers that DeepSpeed allocates for I/O (page aligned, locked), gradients in memory
  best     the same on huge pages, which DeepSpeed does not request, gradients in memory
  real     like best, with gradients written in backward and read in the step, as in ZeRO-Infinity
"""
import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import mmap
import os
import pathlib
import sys
import time
import types

for name in ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"):
    # DeepSpeed's CPU accelerator imports them but does not use them here.
    sys.modules[name] = types.ModuleType(name)
os.environ["DS_ACCELERATOR"] = "cpu"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy  # noqa: E402
import torch  # noqa: E402

HUGE_PAGE = 2 << 20
LEARNING_RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1
CHECKED = 101  # elements per sub-group

arguments = argparse.ArgumentParser()
arguments.add_argument("--folder", required=True)
arguments.add_argument("--parameters", type=int, required=True)
arguments.add_argument("--sub-group", type=int, required=True)
arguments.add_argument("--steps", type=int, required=True)
arguments.add_argument("--rows", required=True)
arguments.add_argument("--aio", type=json.loads, required=True)
arguments = arguments.parse_args()

PLACE = pathlib.Path(importlib.util.find_spec("deepspeed").origin).parent
# The packages without their own imports, many of which are too old for this torch and not needed.
for name in ("deepspeed", "deepspeed.ops", "deepspeed.ops.adam", "deepspeed.runtime"):
    bare = types.ModuleType(name)
    bare.__path__ = [str(pathlib.Path(PLACE, *name.split(".")[1:]))]
    sys.modules[name] = bare

from deepspeed.accelerator import get_accelerator  # noqa: E402
from deepspeed import comm  # noqa: E402
from deepspeed.ops.adam import cpu_adam  # noqa: E402
from deepspeed.ops.op_builder.async_io import AsyncIOBuilder  # noqa: E402
from deepspeed.ops.op_builder.builder import OpBuilder  # noqa: E402
from deepspeed.ops.op_builder.cpu_adam import CPUAdamBuilder  # noqa: E402
from deepspeed.utils import logger  # noqa: E402
from deepspeed.runtime.swap_tensor import pipelined_optimizer_swapper as swapping  # noqa: E402


class OptimizedAdamBuilder(CPUAdamBuilder):
    """Adds the -O3 that DeepSpeed omits if there is no GPU."""

    def cxx_args(self):
        return ["-O3", *super().cxx_args()]


def simd_width(builder):
    """DeepSpeed finds the width by a program that it gives up on when the machine is busy; it would then use no
    vectors."""
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    return "-D__AVX512__" if "avx512f" in flags else "-D__AVX256__" if "avx2" in flags else "-D__SCALAR__"


OpBuilder.simd_width = simd_width
# The GPU accelerator's builders, which also work without a GPU. The CPU accelerator has no I/O, and its Adam has no
# vector instructions.
swapping.AsyncIOBuilder = AsyncIOBuilder
cpu_adam.CPUAdamBuilder = OptimizedAdamBuilder
logger.setLevel("ERROR")
comm.get_rank = lambda group=None: 0  # the swapper calls nothing else of a group


class Buffers:
    """Replaces the accelerator's pinned memory, which needs a GPU."""

    def __init__(self):
        self.is_huge = False
        self.kept = []
        self.ranges = []

    def pin(self, tensor, align_bytes=0):
        pinned = allocate(tensor.numel(), tensor.dtype, self.kept, self.is_huge)
        pinned.copy_(tensor)
        size = pinned.numel() * pinned.element_size()
        ctypes.CDLL(None).mlock(ctypes.c_void_p(pinned.data_ptr()), ctypes.c_size_t(size))  # needs a permission
        self.ranges.append((pinned.data_ptr(), pinned.data_ptr() + size))
        return pinned

    def has(self, tensor):
        return any(begin <= tensor.data_ptr() < end for begin, end in self.ranges)


def allocate(count, dtype, kept, is_huge=True):
    """A tensor of zeros, aligned to 2 MiB; is_huge: on huge pages if the kernel grants them."""
    size = count * torch.empty((), dtype=dtype).element_size()
    memory = mmap.mmap(-1, size + 2 * HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if is_huge:
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE
    kept.append(memory)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=start).zero_()


def start_values(count):
    """Masters and gradients; the same in every sub-group."""
    random = numpy.random.default_rng(1)
    values = [torch.from_numpy(random.standard_normal(count, dtype=numpy.float32)) for _ in range(2)]
    return values[0] * 0.02, values[1] * 1e-2


class Row:
    """A swapper with its own files, stepped as in DeepSpeedZeroOptimizer_Stage3.step()."""

    def __init__(self, name, buffers):
        self.name = name
        self.buffers = buffers
        self.steps = 0
        count = arguments.sub_group
        groups = -(-arguments.parameters // count)
        self.folder = pathlib.Path(arguments.folder, name)
        self.folder.mkdir(parents=True)
        buffers.is_huge = name != "default"
        self.masters = [torch.nn.Parameter(torch.empty(0)) for _ in range(groups)]
        self.optimizer = cpu_adam.DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(1))], lr=LEARNING_RATE, betas=BETAS, eps=EPSILON,
                                          weight_decay=DECAY)
        self.optimizer.param_groups[0]["params"] = []
        swap = types.SimpleNamespace(buffer_count=12 if name == "real" else 9, pipeline_read=True, pipeline_write=True)
        self.swapper = swapping.PipelinedOptimizerSwapper(swap, arguments.aio, str(self.folder), self.optimizer, count, "cpu",
                                                 torch.float32, None)
        self.start, gradient = start_values(count)
        self.gradient = allocate(count, torch.float32, buffers.kept)
        self.gradient.copy_(gradient)
        self.gradients = [self.gradient]
        if name != "real":  # one buffer each, as in training; the real row has them in storage
            for _ in range(groups - 1):
                self.gradients.append(allocate(count, torch.float32, buffers.kept))
                self.gradients[-1].copy_(gradient)
        self.halves = [allocate(count, torch.bfloat16, buffers.kept) for _ in range(groups)]
        self.swapper.initialize_parameters(self.masters, [self.start] * groups)
        self.allocate_moments()

    def allocate_moments(self):
        """Does what initialize_optimizer_states() does: a step without decay, with zero gradients."""
        self.optimizer.param_groups[0].update(weight_decay=0.0)
        zeros = torch.zeros_like(self.gradient)
        for master in self.masters:
            self.swapper.swap_in_optimizer_state(master, None)
            master.grad = zeros
            self.update(master)
            master.grad = None
            self.swapper.swap_out_optimizer_state(master, False)
        self.optimizer.param_groups[0].update(weight_decay=DECAY)
        for state in self.optimizer.state.values():
            state["step"] = 0

    def update(self, master):
        self.optimizer.param_groups[0]["params"] = [master]
        self.optimizer.step()
        self.optimizer.param_groups[0]["params"] = []

    def backward(self):
        """Writes the gradients as the backward pass does."""
        for master in self.masters:
            self.swapper.swap_out_gradients(master, [0], [self.gradient])
        self.swapper.flush_gradients()

    def step(self):
        following = [*self.masters[1:], None]
        for i, master in enumerate(self.masters):
            self.swapper.swap_in_optimizer_state(master, following[i])
            if self.name != "real":
                master.grad = self.gradients[i]
            self.update(master)
            self.halves[i].copy_(master.data)
            master.grad = None
            self.swapper.swap_out_optimizer_state(master, following[i] is not None)
        self.steps += 1

    def turn(self):
        begin = time.perf_counter()
        stepping = 0.0
        before = io_bytes()
        for _ in range(arguments.steps):
            if self.name == "real":
                self.backward()
            start = time.perf_counter()
            self.step()
            stepping += time.perf_counter() - start
        seconds = time.perf_counter() - begin
        moved = [(after - old) / (self.parameters() * arguments.steps) for old, after in zip(before, io_bytes())]
        rate = self.parameters() * arguments.steps / 1e6
        return {"row": self.name, "mparam_s": rate / seconds, "step_mparam_s": rate / stepping,
                "read_bytes_per_parameter": moved[0], "written_bytes_per_parameter": moved[1], "verified": self.verify()}

    def parameters(self):
        return len(self.masters) * arguments.sub_group

    def verify(self):
        """Compares elements of the stored state with AdamW in double precision; returns their number."""
        indices = numpy.linspace(0, arguments.sub_group - 1, CHECKED, dtype=int)
        expected = adamw(self.start.numpy()[indices].astype(float), self.gradient.numpy()[indices].astype(float), self.steps)
        for i, master in enumerate(self.masters):
            paths = self.swapper.swap_params_info[id(master)].swap_paths
            for array, (path, wanted) in enumerate(zip(paths, expected)):
                stored = numpy.memmap(path, dtype=numpy.float32, mode="r")[indices]
                if not numpy.allclose(stored, wanted, rtol=1e-4, atol=1e-7 if array == 0 else 1e-12):
                    sys.exit(f"peer_worker: array {array} of sub-group {i} of row {self.name} is not what AdamW gives.")
            if not torch.equal(self.halves[i][indices], torch.from_numpy(
                    numpy.memmap(paths[0], dtype=numpy.float32, mode="r")[indices]).bfloat16()):
                sys.exit(f"peer_worker: the 16-bit parameters of sub-group {i} of row {self.name} are not its masters.")
        return len(indices) * len(self.masters)


def adamw(master, gradient, steps):
    """Master and moments after `steps` steps with the same gradient (Loshchilov and Hutter, 2019)."""
    moment1 = moment2 = 0 * master
    for step in range(1, steps + 1):
        moment1 = BETAS[0] * moment1 + (1 - BETAS[0]) * gradient
        moment2 = BETAS[1] * moment2 + (1 - BETAS[1]) * gradient**2
        root = numpy.sqrt(moment2 / (1 - BETAS[1]**step)) + EPSILON
        master = master * (1 - LEARNING_RATE * DECAY) - LEARNING_RATE * moment1 / (1 - BETAS[0]**step) / root
    return master, moment1, moment2


def io_bytes():
    """Bytes read and written by this process, as the kernel counts them at the block layer."""
    lines = pathlib.Path("/proc/self/io").read_text().splitlines()
    counts = {key: int(value) for key, value in (line.split(": ") for line in lines)}
    return counts["read_bytes"], counts["write_bytes"]


def main():
    torch.set_grad_enabled(False)
    buffers = Buffers()
    get_accelerator().pin_memory = buffers.pin
    get_accelerator().is_pinned = buffers.has
    rows = {name: Row(name, buffers) for name in arguments.rows.split(",")}
    for row in rows.values():
        row.turn()  # first use of files and buffers
    print(json.dumps({"rows": list(rows), "parameters": rows[next(iter(rows))].parameters(), "version": importlib.metadata.version("deepspeed"),
                      "torch": torch.__version__, "threads": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        print(json.dumps(rows[line.strip()].turn()), flush=True)


main()
