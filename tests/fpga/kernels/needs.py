"""Derives the pragmas that the kernels need, and the memory that they take on the device."""

import collections
import dataclasses
import math

from loops import LoopWalker, Use
from source import KERNELS, ROOT, Pragma, inner_of

# The device's rules (UG573): a BRAM36 is two blocks of 18 Kbit, each with one of these shapes; a URAM is 4,096 x 72.
BRAM18_SHAPES = ((36, 512), (18, 1024), (9, 2048), (4, 4096), (2, 8192), (1, 16384))
URAM_BITS, URAM_DEPTH = 72, 4096
# Vitis HLS takes lookup tables below this, and BRAM above it; it takes no URAM by itself (UG1399, bind_storage).
LOOKUP_BITS = 1024
# What would take this many BRAM36 goes to URAM, where the design puts what waits for a whole tile.
LARGE_BRAM36 = 32


def bram18_of(bits, depth):
    return min(math.ceil(bits / width) * math.ceil(depth / height) for width, height in BRAM18_SHAPES)


def uram_of(bits, depth):
    return math.ceil(bits / URAM_BITS) * math.ceil(depth / URAM_DEPTH)


@dataclasses.dataclass(frozen=True)
class Placed:
    """A memory on the device."""

    name: str
    function: str
    bits: int
    depth: int
    bram18: int
    uram: int


class Needs:
    """`pragmas` by the file and first line of their function or loop; `problems` that no pragma can solve."""

    def __init__(self, tree, pragmas):
        self.tree = tree
        self.pragmas = collections.defaultdict(set)
        self.problems = []
        self.memories = []
        walkers = []
        for entry in entries_of(tree):
            walker = LoopWalker(tree, pragmas)
            walker.walk(entry)
            walkers.append(walker)
        for walker in walkers:
            self._streams(walker)
            uses = self._uses(walker)
            for memory in walker.instances.values():
                self._memory(memory, uses)
            for loop in walker.loops:
                self._loop(loop, [use for use, _ in uses if use.loop is loop])

    def need(self, owner, kind, *settings):
        self.pragmas[owner].add((kind, *settings))

    # --- Streams and memories --------------------------------------------------------------------

    # Streams connect the processes of a dataflow region, each from one writer to one reader.
    def _streams(self, walker):
        for stream in (m for m in walker.instances.values() if m.is_stream):
            self.need(stream.owner, "dataflow")
            if len(stream.writers) != 1 or len(stream.readers) != 1:
                self.problems.append(f"{stream.function}: stream {stream.name} has {len(stream.writers)} writers and "
                                     f"{len(stream.readers)} readers, not one of each")

    # How each pipelined loop uses each memory: pairs of a use and the memory, or its first access if it is a table.
    def _uses(self, walker):
        declared = {m.path: m for m in walker.instances.values()}
        found = []
        for loop in (one for one in walker.loops if one.kind == "pipelined"):
            for path in {a.memory for a in loop.accesses if a.memory[0] != "device"}:
                if path in declared:
                    found.append((Use(loop, path, declared[path].loops), declared[path]))
                else:
                    access = next(a for a in loop.accesses if a.memory == path)
                    use = Use(loop, path, len(loop.nest) - 1)
                    found.append((use, None))
                    if max(use.most(1)) > 2:  # a table has two ports
                        self.need(access.function, "array_partition", f"variable={access.name}", "complete")
        return found

    def _memory(self, memory, uses):
        uses = [use for use, of in uses if of is memory]
        name = f"variable={memory.name}"
        bits, depth = self.tree.bits(memory.element), math.prod(memory.dimensions)
        if not memory.is_stream and self.tree.record_of(memory.element):
            self.need(memory.owner, "aggregate", name)
        distances = [use.distance for use in uses if use.distance]
        if distances and min(distances) > 1:
            self.need(memory.owner, "dependence", name, "inter", f"distance={min(distances)}", "true")
        banks = max([use.banks() for use in uses], default=1)
        if banks > 1:
            self.need(memory.owner, "array_partition", name, "cyclic", f"factor={banks}")
        place = (bits, depth // banks)
        bram18, uram = banks * bram18_of(*place), 0
        if bits * depth <= LOOKUP_BITS:
            bram18 = 0
        elif bram18 > 2 * LARGE_BRAM36:
            self.need(memory.owner, "bind_storage", name, f"type={'fifo' if memory.is_stream else 'ram_2p'}",
                      "impl=uram")
            bram18, uram = 0, banks * uram_of(*place)
        self.memories.append(Placed(memory.name, memory.function, bits, depth, bram18, uram))

    # --- Loops -----------------------------------------------------------------------------------

    def _loop(self, loop, uses):
        if loop.kind == "unrolled":
            self.need(loop.place, "unroll")
        # Vitis pipelines the few loops of src/arith by itself: they run once per tile.
        if loop.kind != "pipelined" or not (ROOT / KERNELS / loop.place[0]).exists():
            return
        by_memory = [use.cycles / use.distance for use in uses if use.distance]
        interval = max(1, math.ceil(max([loop.interval(), *by_memory])))
        self.need(loop.place, "pipeline", f"II={interval}")
        for port in {(a.memory, a.is_write) for a in loop.accesses if a.memory[0] == "device"}:
            if len({a.index for a in loop.accesses if (a.memory, a.is_write) == port}) > 1:
                self.problems.append(f"{loop.function}: a loop uses port {port[0][1]} more than once in an iteration")

    def differences(self, pragmas):
        """What is wrong with these pragmas, as sentences."""
        found = list(self.problems)
        stated = collections.defaultdict(set)
        for pragma in (p for p in pragmas if p.kind != "interface"):
            stated[self.tree.owner(pragma)].add((pragma.kind, *pragma.settings))
        for owner in {*stated, *self.pragmas}:
            for missing in self.pragmas.get(owner, set()) - stated.get(owner, set()):
                found.append(f"{Pragma(*owner, missing[0], missing[1:])} is needed there")
            for wrong in stated.get(owner, set()) - self.pragmas.get(owner, set()):
                found.append(f"{Pragma(*(owner or ('outside', 0)), wrong[0], wrong[1:])} is wrong there")
        return found


def entries_of(tree):
    """The ids of the kernels' functions."""
    return [d["id"] for d in tree.decls.values()
            if d["kind"] == "FunctionDecl" and d["name"].startswith("nearstep_") and
            any(c["kind"] == "CompoundStmt" for c in inner_of(d))]


def ports_of(pragmas, word_bits=512):
    """The buffers of each port's outstanding bursts, in both directions, as memories."""
    ports = {}
    for pragma in (p for p in pragmas if p.kind == "interface" and "m_axi" in p.settings):
        for way in ("read", "write"):
            if (burst := pragma.get(f"max_{way}_burst_length")) is not None:
                depth = int(burst) * int(pragma.get(f"num_{way}_outstanding"))
                ports[pragma.file, pragma.get("bundle"), way] = depth
    # A direction that is not used has the depth of the other.
    deepest = {port[:2]: max(d for p, d in ports.items() if p[:2] == port[:2]) for port in ports}
    return [Placed(f"{bundle} {way}", file, word_bits, depth, bram18_of(word_bits, depth), 0)
            for (file, bundle), depth in sorted(deepest.items()) for way in ("read", "write")]

