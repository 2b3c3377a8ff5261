#!/usr/bin/env python3
"""Checks that fpga/Makefile calls Vitis's compiler for every kernel with the right arguments.

    tests/fpga/check_makefile.py CXX

A stand-in for v++ compiles each kernel as Vitis HLS would, with the Makefile's include folders, and
records its command line.
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
import verdict  # noqa: E402

STAND_IN = """#!/usr/bin/env bash
set -euo pipefail
echo "$*" >> "{log}"
out= includes=()
for ((i = 1; i <= $#; ++i)); do
    next=$((i + 1))
    case "${{!i}}" in
        --output) out=${{!next}} ;;
        --config) [[ -s ${{!next}} ]] ;;
        -I) includes+=(-I "${{!next}}") ;;
    esac
done
if [[ $1 == --compile ]]; then
    {cxx} -std=c++14 -fno-exceptions -Wno-unknown-pragmas -D__SYNTHESIS__ -fsyntax-only \\
        -I "{stream}" "${{includes[@]}}" "${{@: -1}}"
fi
echo "made" > "$out"
"""


def kernels_of_table():
    """The kernels' names in arguments.hpp, and their sources."""
    table = (ROOT / "fpga/kernel/arguments.hpp").read_text()
    names = re.findall(r'{"(nearstep_\w+)", k\w+Arguments', table)
    return {name: ROOT / f"fpga/kernel/{name.removeprefix('nearstep_')}.cpp" for name in names}


def make(out, compiler, *settings):
    return subprocess.run(
        ["make", "-C", str(ROOT / "fpga"), f"OUT={out}", f"VPP={compiler}", *settings],
        capture_output=True,
        text=True,
        check=False,
    )


def lines_of(config):
    return [line for line in config.read_text().splitlines() if not line.startswith("#")]


def check_updaters(folder, stand_in):
    """Two updaters have the same connections, and one has those of link.cfg."""
    one = lines_of(folder / "out/link.cfg")
    assert one == lines_of(ROOT / "fpga/kernel/link.cfg"), one
    built = make(folder / "two", stand_in, "UPDATERS=2")
    assert built.returncode == 0, built.stderr
    two = lines_of(folder / "two/link.cfg")
    first = [line for line in one if line.startswith("sp=nearstep_updater_1.")]
    second = [line.replace("updater_1.", "updater_2.") for line in first]
    assert first and "nk=nearstep_updater:2" in two, two
    assert sorted(two) == sorted([*(line.replace("updater:1", "updater:2") for line in one), *second]), two
    three = make(folder / "three", stand_in, "UPDATERS=3")
    assert three.returncode == 2 and "UPDATERS is 1 or 2" in three.stderr, three.stderr


def main():
    if shutil.which("make") is None:
        verdict.end_skipped("there is no make on this machine")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        log = folder / "calls"
        stand_in = folder / "v++"
        stand_in.write_text(STAND_IN.format(log=log, cxx=sys.argv[1], stream=ROOT / "tests/fpga/synthesis"))
        stand_in.chmod(0o755)

        built = make(folder / "out", stand_in)
        assert built.returncode == 0, built.stdout + built.stderr
        assert (folder / "out/nearstep.xclbin").exists()
        calls = log.read_text().splitlines()
        compiled = {}
        for call in (c for c in calls if c.startswith("--compile")):
            assert "--platform xilinx_u2_gen3x4_xdma_gc_2_202110_1" in call, call
            kernel = re.search(r"--kernel (\w+)", call)[1]
            assert f"--hls.clock 250000000:{kernel} " in call, call
            compiled[kernel] = pathlib.Path(call.split()[-1])
        assert compiled == kernels_of_table(), compiled
        links = [c for c in calls if c.startswith("--link")]
        assert len(links) == 1 and calls[-1] == links[0], calls
        assert all(f"/{kernel}.xo" in links[0] for kernel in compiled), links
        assert f"--config {folder}/out/link.cfg" in links[0], links

        again = make(folder / "out", stand_in)
        assert again.returncode == 0 and len(log.read_text().splitlines()) == len(calls), "nothing is built twice"

        check_updaters(folder, stand_in)
        absent = make(folder / "other", folder / "no-such-compiler")
        assert absent.returncode == 2, absent
        assert "source Vitis's settings64.sh" in absent.stderr, absent.stderr
        assert not (folder / "other").exists()
    print(f"check_makefile: {len(compiled)} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
