"""The kernels' loops: their kinds, the interval that variables force on them, and the distances in memories."""

import collections
import dataclasses
import itertools

from source import inner_of, lines_of, split_array, type_of
from values import Value, latest, slowest_cycle, symbol
from walker import Walker

OUTER_ITERATIONS = 3  # of a loop around a pipelined one that are looked at
INNER_ITERATIONS = 65536  # of a pipelined loop whose end the texts do not say
MOST_UNROLLED = 4096
MOST_BANKS = 64


@dataclasses.dataclass
class Loop:
    place: tuple  # file and line
    function: str
    kind: str = "outer"  # or "pipelined", "unrolled"
    counter: str = ""  # symbol in the texts of values; empty: none
    begin: str = ""
    condition: str = ""
    step: int = 1
    has_loops: bool = False
    nest: tuple = ()  # the loops around it and itself
    accesses: list = dataclasses.field(default_factory=list)
    edges: dict = dataclasses.field(default_factory=dict)

    def interval(self):
        """Cycles from one iteration to the next that its variables force."""
        return slowest_cycle(self.edges)

    def counts(self, most):
        """The values of the counter; those of the first `most` iterations if the texts do not say when it ends."""
        count = 0
        try:
            count = eval(self.begin)
            while eval(self.condition, {}, {self.counter: count}):
                yield count
                count += self.step
        except (NameError, SyntaxError):
            for _ in range(most):
                yield count
                count += self.step


def holds(condition, counters):
    """False only if the text is known and false."""
    try:
        return bool(eval(condition, {}, counters))
    except NameError:
        return True


class LoopWalker(Walker):
    """After walk(): `loops` and `instances`, each with its accesses."""

    def __init__(self, tree, pragmas):
        super().__init__(tree, pragmas)
        self.loops = []

    def loop(self, node):
        file, line, _ = lines_of(node)
        kinds = {p.kind for p in self.pragmas.get((file, line), [])}
        loop = Loop((file, line), self.frames[-1]["function"]["name"])
        if "unroll" in kinds:
            self.unroll(node, loop)
            return
        if self.stack:
            self.stack[-1].has_loops = True
        self.begin(node, loop)
        self.stack.append(loop)
        self.declared.append(set())
        before = dict(self.env)
        self.dry += 1
        self.iterate(node, loop)
        self.dry -= 1
        inside = self.declared[-1]
        states = {p for p in self.env if self.env[p] is not before.get(p) and p[1] not in inside}
        loop.kind = "outer" if loop.has_loops else "pipelined"
        self.env = before
        for path in states:
            is_counter = loop.counter and path == loop.path
            self.env[path] = Value({path: 0} if loop.kind == "pipelined" else {},
                                   loop.counter if is_counter else symbol())
        condition = self.iterate(node, loop)
        loop.nest = tuple(self.stack)
        for path in states:
            for name, cycles in latest(self.read(path), condition).items():
                if name in states:
                    loop.edges[name, path] = cycles
            self.env[path] = Value({}, symbol())
        self.declared.pop()
        self.declared[-1] |= inside
        self.stack.pop()
        if not self.dry:
            self.loops.append(loop)

    def begin(self, node, loop):
        """Runs what precedes the first iteration."""
        loop.path = None
        if node["kind"] == "CXXForRangeStmt":
            loop.counter, loop.begin = symbol("c"), "0"
            loop.condition = f"{loop.counter} < {self.range_of(node)[1]}"
        elif node["kind"] == "ForStmt" and node["inner"][0]:
            self.run(node["inner"][0])
            variable, step = inner_of(node["inner"][0])[0], node["inner"][3]
            if step["kind"] == "UnaryOperator" and step["opcode"] == "++":
                loop.counter, loop.path = symbol("c"), ("v", variable["id"])
                loop.begin = self.env[loop.path].text

    def iterate(self, node, loop):
        """One iteration; returns the loop's condition."""
        if node["kind"] == "CXXForRangeStmt":
            self.bind(node, Value({}, loop.counter))
            self.run(node["inner"][-1])
            return Value()
        is_for = node["kind"] == "ForStmt"
        condition = self.value(node["inner"][2 if is_for else 0])
        loop.condition = loop.condition or condition.text
        level = len(self.controls)
        self.controls.append(condition)
        if loop.counter and not self.dry:
            loop.condition = condition.text
        self.run(node["inner"][-1])
        if is_for:
            self.value(node["inner"][3])
        del self.controls[level:]
        return condition

    def unroll(self, node, loop):
        loop.kind = "unrolled"
        loop.nest = (*self.stack, loop)
        if not self.dry:
            self.loops.append(loop)
        if node["kind"] == "CXXForRangeStmt":
            for index in range(self.range_of(node)[1]):
                self.bind(node, Value({}, str(index)))
                self.run(node["inner"][-1])
            return
        self.run(node["inner"][0])
        for _ in range(MOST_UNROLLED):
            if not self.value(node["inner"][2]).number:
                return
            self.run(node["inner"][-1])
            self.value(node["inner"][3])

    def range_of(self, node):
        """The array's path and length."""
        array = inner_of(inner_of(node["inner"][1])[0])[0]
        return self.place(array), split_array(type_of(array))[1][0]

    def bind(self, node, index):
        variable = inner_of(node["inner"][-2])[0]
        element = (*self.range_of(node)[0], ("[]", index))
        self.declared[-1].add(variable["id"])
        self.places.pop(variable["id"], None)
        if type_of(variable).endswith("&"):
            self.places[variable["id"]] = element
        else:
            self.write(("v", variable["id"]), self.read(element))


# --- Memories in a pipelined loop --------------------------------------------------------------------


def iterations(loop, first):
    """The counters of each iteration, with those of the loops around it from number `first` on, in order."""
    def nested(loops, counters):
        if not loops:
            yield counters
            return
        one = loops[0]
        counts = one.counts(INNER_ITERATIONS)
        for count in counts if one is loop else itertools.islice(counts, OUTER_ITERATIONS):
            yield from nested(loops[1:], {**counters, one.counter: count})
    yield from nested(loop.nest[first:], {})


class Use:
    """How a pipelined loop uses a memory: `distance`, the fewest iterations from a write to a read of the same cell
    (None: it reads nothing that it wrote; 1 if the index is unknown), and the cells of each iteration."""

    def __init__(self, loop, path, first):
        self.loop = loop
        accesses = [a for a in loop.accesses if a.memory == path]
        self.is_read = any(not a.is_write for a in accesses)
        self.is_written = any(a.is_write for a in accesses)
        self.distance = None
        self.cells = []  # of each iteration: cells read, cells written
        # Cycles from a read to the write that depends on it.
        self.cycles = max((a.value.delays.get(("memory", path), 0) for a in accesses if a.is_write), default=0)
        compiled = [(a.is_write, [compile(g, "guard", "eval") for g in a.guards],
                     compile(f"({', '.join(a.index)},)", "index", "eval")) for a in accesses]
        try:
            self._follow(compiled, iterations(loop, first))
        except NameError:
            self.distance = 1 if self.is_read and self.is_written else None
            reads = {a.index for a in accesses if not a.is_write}
            self.cells = [(reads, {a.index for a in accesses if a.is_write})]

    def _follow(self, accesses, counters):
        written = {}
        for time, at in enumerate(counters):
            now = (set(), set())
            for is_write, guards, index in accesses:
                if not all(holds(guard, at) for guard in guards):
                    continue
                cell = eval(index, {}, at)
                now[is_write].add(cell)
                if not is_write and written.get(cell, time) < time:
                    self.distance = min(self.distance or time, time - written[cell])
                if is_write:
                    written[cell] = time
            self.cells.append(now)

    def banks(self):
        """The fewest banks with one cell to read and one to write in an iteration, or two to read."""
        banks = 1
        while banks < MOST_BANKS:
            read, written = self.most(banks)
            if written <= 1 and read <= (1 if self.is_written else 2):
                break
            banks += 1
        return banks

    def most(self, banks):
        """The most cells that an iteration reads from one of the banks, and that it writes to one."""
        counts = [0, 0]
        for now in self.cells:
            for way in (0, 1):
                by_bank = collections.Counter(c[0] % banks if isinstance(c[0], int) else 0 for c in now[way])
                counts[way] = max([counts[way], *by_bank.values()])
        return counts
