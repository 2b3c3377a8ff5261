#!/usr/bin/env python3
"""Checks what Vitis HLS would be told about the kernels in fpga/kernel, without Vitis.

    tests/fpga/check_kernels.py [--table]

It derives the pragmas that the kernels need from clang's syntax tree: which loops are pipelined and at which interval,
the distance of each dependence, banks and places of memories, and regions of processes. Pragmas that differ are errors.
So a test removes and falsifies each pragma, and changes the kernels (all changes with NEARSTEP_LONG=1). It also counts
the on-chip memory from the declarations and compares it with limits.hpp and fpga/README.md. --table prints the memories.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE / "kernels"), str(HERE.parent / "support")]
import verdict  # noqa: E402
from needs import Needs, ports_of  # noqa: E402
from source import KERNELS, ROOT, Tree, read_pragmas  # noqa: E402
from values import CYCLES  # noqa: E402

# Changes of the kernels: file, text, other text, what must be said of it.
CHANGES = (
    ("encode_delta.hpp", "bits = first_;", "bits = picked_bits(bitmaps, wanted, taken_);", "pipeline II=2 is needed"),
    ("sum_gradient.hpp", "kSquareSums = 64", "kSquareSums = 128", "distance=32 true is needed"),
    ("stream.hpp", "kShallow = 64;", "kShallow = 4096;",
     "bind_storage variable=old type=fifo impl=uram is needed"),
    ("read_memory.hpp", "cursor.next < job.groups.runs; ++", "cursor.next < job.groups.runs && cursor.word.of[0] != 0; ++",
     "pipeline II=100 is needed"),
    ("encode_moments.hpp", "waiting[(block - 1) % kPingPong]", "waiting[block % kPingPong]", "distance=128 true is needed"),
    ("sum_gradient.hpp", "% kSquareSums] +=", "% 16] +=", "pipeline II=4 is needed"),
    ("update_subgroup.hpp", "write_parameters(job, span, plain,", "write_parameters(job, span, compared,",
     "stream compared has 1 writers and 2 readers"),
    ("word_parts.hpp", "#pragma HLS unroll\n        unit = 0;", "unit = 0;", "pipeline II=1 is needed"),
    ("xxh3.hpp", "#pragma HLS array_partition variable = kXxhSecret complete\n", "\n", "kXxhSecret complete is needed"),
)
FEW = 3  # of them in a short run


def falsified(pragma):
    """Pragmas that claim something else."""
    others = {"II": lambda ii: str(int(ii) + 1), "distance": lambda d: str(2 * int(d)), "factor": lambda f: str(2 * int(f)),
              "impl": lambda _: "bram", "variable": lambda name: name + "_other"}
    for at, setting in enumerate(pragma.settings):
        name, _, value = setting.partition("=")
        if name in others:
            changed = f"{name}={others[name](value)}"
            yield dataclasses.replace(pragma, settings=(*pragma.settings[:at], changed, *pragma.settings[at + 1:]))
    if pragma.kind == "dependence":
        without = tuple(s for s in pragma.settings if s != "true" and not s.startswith("distance"))
        yield dataclasses.replace(pragma, settings=(*without, "false"))
    if pragma.kind == "unroll":
        yield dataclasses.replace(pragma, settings=("factor=2",))


def check_pragmas(needs, pragmas):
    """Every removed and every false pragma is found; returns their number."""
    count = 0
    for at, pragma in enumerate(pragmas):
        if pragma.kind == "interface":  # arguments_test compares these with arguments.hpp
            continue
        for other in (None, *falsified(pragma)):
            changed = [*pragmas[:at], *([other] if other else []), *pragmas[at + 1:]]
            assert needs.differences(changed), f"{pragma} may be {other or 'absent'}"
            count += 1
    return count


def check_changes(clang, changes):
    for file, text, other, wanted in changes:
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            for folder in (KERNELS, "src/arith", "src/base", "tests/fpga/synthesis"):
                shutil.copytree(ROOT / folder, root / folder)
            path = root / KERNELS / file
            assert path.read_text().count(text) == 1, f"{file} no longer has '{text}'"
            path.write_text(path.read_text().replace(text, other))
            pragmas = read_pragmas(root)
            found = Needs(Tree(clang, root), pragmas).differences(pragmas)
            assert any(wanted in one for one in found), f"{file} with '{other}': {found}"


def check_memory(memories):
    """Within limits.hpp and as in README.md."""
    limits = (ROOT / KERNELS / "limits.hpp").read_text()
    bram = sum(m.bram18 for m in memories) / 2
    uram = sum(m.uram for m in memories)
    cells = []
    for used, name in ((bram, "Bram36"), (uram, "Uram")):
        available = int(re.search(rf"k{name} = (\d+);", limits)[1])
        share = int(re.search(rf"kMost{name} = k{name} / (\d+);", limits)[1])
        assert share * used <= available, f"the kernels take {used:g} of {available} {name}, more than 1/{share}"
        cells.append(f"{used:g} ({100 * used / available:.0f} %), counted")
    row = f"| {' | '.join(cells)} |"
    assert row in (ROOT / "fpga/README.md").read_text(), f"fpga/README.md lacks '{row}'"
    return cells


def main():
    clang = shutil.which("clang++")
    if clang is None:
        verdict.end_skipped("there is no clang++ on this machine")
    pragmas = read_pragmas()
    needs = Needs(Tree(clang), pragmas)
    memories = [*needs.memories, *ports_of(pragmas)]
    if sys.argv[1:] == ["--table"]:
        for one in memories:
            print(f"{one.function:20} {one.name:24} {one.bits:4} x {one.depth:5} {one.bram18 / 2:5g} BRAM36 {one.uram:3} URAM")
        return 0
    differences = needs.differences(pragmas)
    assert not differences, "\n".join(differences)
    adds = re.search(r"kDoubleAddCycles = (\d+);", (ROOT / KERNELS / "sum_gradient.hpp").read_text())
    assert int(adds[1]) == CYCLES["double", "+"], "values.py adds doubles in another number of cycles"
    count = check_pragmas(needs, pragmas)
    changes = CHANGES if os.environ.get("NEARSTEP_LONG") else CHANGES[:FEW]
    check_changes(clang, changes)
    cells = check_memory(memories)
    print(f"check_kernels: {len(needs.memories)} memories, {' BRAM36, '.join(cells)} URAM; {count} changes of pragmas and "
          f"{len(changes)} of the kernels are found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
