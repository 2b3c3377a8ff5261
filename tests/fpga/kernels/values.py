"""Values of the kernels' variables: how late each is known, and its text where it depends on loop counters alone."""

import dataclasses
import itertools
import re

# Cycles of operations at 250 MHz. Additions and selections of integers fit into the cycle of the register behind them.
# Estimates from AMD's PG060 and UG1399; the cycle model has the same for doubles (kDoubleAddCycles).
CYCLES = {("float", "+"): 5, ("float", "*"): 4, ("float", "/"): 12, ("float", "<"): 1, ("double", "+"): 12,
          ("double", "*"): 8, ("double", "/"): 28, ("double", "<"): 1, ("int", "*"): 3, ("float", "sqrt"): 14}
LOAD_CYCLES = 2  # of memory on the chip: its address, then its output register
STORE_CYCLES = 1
DEVICE_LOAD_CYCLES = 100  # of the device's memory, through a port

_symbols = itertools.count()


@dataclasses.dataclass(frozen=True, eq=False)
class Value:
    """delays: for each variable of the iteration before, the cycles from its value to this one."""

    delays: dict = dataclasses.field(default_factory=dict)
    text: str = ""

    def later(self, cycles):
        return Value({k: v + cycles for k, v in self.delays.items()}, self.text) if cycles else self

    @property
    def number(self):
        return int(self.text) if re.fullmatch(r"-?\d+", self.text) else None


def symbol(stem="x"):
    return f"{stem}_{next(_symbols)}"


def latest(*values):
    delays = {}
    for value in values:
        for name, cycles in value.delays.items():
            delays[name] = max(cycles, delays.get(name, 0))
    return delays


def join(*values):
    """A value that may be any of these, or is made from all of them."""
    texts = {value.text for value in values}
    return Value(latest(*values), texts.pop() if len(texts) == 1 else symbol())


def operate(operator, type_name, one, other):
    family = "double" if "double" in type_name else "float" if "float" in type_name else "int"
    kind = {"-": "+", "==": "<", "!=": "<", ">": "<", "<=": "<", ">=": "<"}.get(operator, operator)
    cycles = CYCLES.get((family, kind), 0)
    if family == "int" and (one.number is not None or other.number is not None):
        cycles = 0  # by a constant
    if family != "int":
        return Value(latest(one, other), symbol()).later(cycles)
    python = {"/": "//", "&&": "and", "||": "or"}.get(operator, operator)
    text = f"({one.text} {python} {other.text})"
    if one.number is not None and other.number is not None:
        text = str(int(eval(text)))  # of two numbers
    return Value(latest(one, other), text).later(cycles)


def slowest_cycle(edges):
    """The largest mean of the delays around a circle of {(from, to): cycles}: the least interval of a loop."""
    names = sorted({name for edge in edges for name in edge}, key=str)
    # Karp: walks of every length from anywhere.
    walks = [{name: 0.0 for name in names}]
    for _ in names:
        best = {}
        for (one, other), cycles in edges.items():
            if one in walks[-1]:
                best[other] = max(best.get(other, float("-inf")), walks[-1][one] + cycles)
        walks.append(best)
    count = len(names)
    means = [min((walks[count][name] - walks[k][name]) / (count - k) for k in range(count) if name in walks[k])
             for name in walks[count]]
    return max(means, default=0)
