"""Checks which module includes what, against layers.txt, that kernels are C++14, who knows the program's options, and
where private names of PyTorch are.

check_layers.py layers     reads every #include of the product; prints each violation, and headers with the same name
check_layers.py kernels    compiles each header of src/arith and fpga/kernel as C++14 without exceptions
check_layers.py words      reads the messages of modules that the Python package has: they take options and keys from
                           base/wording
check_layers.py private    reads the Python sources; only python/nearstep/_torch_private.py has private names of PyTorch
check_layers.py self_test  plants violations in temporary trees and expects each to be found
"""

import argparse
import ast
import pathlib
import re
import subprocess
import sys
import tempfile

PRODUCT = ("src", "include", "mpi", "fpga", "python")
KERNEL_FOLDERS = ("src/arith", "fpga/kernel")  # what Vitis HLS compiles
SUFFIXES = {".cpp", ".hpp", ".h", ".c", ".cc", ".cu", ".cuh"}
HEADERS = {".hpp", ".h", ".cuh"}
SYSTEM = re.compile(
    r"[a-z_0-9]+"  # the C++ library
    r"|(sys|linux|asm|arpa|netinet|net)/.*"
    r"|(unistd|fcntl|errno|ifaddrs|signal|pthread|sched|dlfcn|link|poll|netdb|dirent|time|math|string|stdio|stdlib"
    r"|stdint|stddef|limits|float|assert|endian|cpuid|immintrin|x86intrin)\.h"
)
INCLUDE = re.compile(r"\s*#\s*(?:include|include_next|import)\b\s*(.*)")
NAME = re.compile(r'(?:"([^"]+)"|<([^>]+)>)')


class Module:
    def __init__(self, line):
        level, self.name, self.folder, *rest = line.split()
        self.level = int(level)
        self.unknown = [word.removeprefix("not:") for word in rest if word.startswith("not:")]
        self.foreign = [word for word in rest if not word.startswith("not:")]

    def may_include_foreign(self, header, is_source):
        for start in self.foreign:
            only_sources = start.startswith("cpp:")
            if header.startswith(start.removeprefix("cpp:")) and (is_source or not only_sources):
                return True
        return False


def read_modules(path):
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [Module(line) for line in lines if line]


def module_of(modules, path):
    """The module with the longest folder that holds `path`, which is relative to the root."""
    homes = [m for m in modules if path.startswith(m.folder + "/")]
    return max(homes, key=lambda m: len(m.folder), default=None)


def product_files(root):
    for top in PRODUCT:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file():
                yield path


def resolve(root, header):
    """The product file that an include names, relative to the root; None if it names none."""
    for candidate in ("src/" + header, "include/" + header, header):
        if candidate.split("/")[0] in PRODUCT and (root / candidate).is_file():
            return candidate
    return None


def violation_of(root, modules, module, path, directive):
    """Returns what is wrong with the text after #include, or None."""
    named = NAME.match(directive)
    if not named:
        return f"includes {directive.strip()}: name a header, so that this test can read it"
    header = named.group(1) or named.group(2)
    if ".." in header.split("/"):
        return f"includes {header}: write the path from the root of src/ or of the project"
    ours = resolve(root, header)
    if ours is not None:
        other = module_of(modules, ours)
        if other is None:
            return f"includes {header}, which is in no module of layers.txt"
        if other is not module and other.level >= module.level:
            return (
                f"includes {header}: {module.name} is on level {module.level} and may not include "
                f"{other.name} on level {other.level}"
            )
        if other.name in module.unknown:
            return f"includes {header}: {module.name} does not know {other.name}"
        return None
    if named.group(2) and SYSTEM.fullmatch(header):
        return None
    if module.may_include_foreign(header, path.suffix == ".cpp"):
        return None
    if named.group(1) and (path.parent / header).is_file():
        return f"includes {header}: write the path from the root of src/ or of the project"
    return f"includes {header}, a foreign header that layers.txt does not allow in {module.name} here"


def find_violations(root, modules):
    violations, files = [], 0
    for path in product_files(root):
        files += 1
        place = path.relative_to(root).as_posix()
        module = module_of(modules, place)
        if module is None:
            violations.append(f"{place} is in no module of layers.txt: add the module's line")
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            directive = INCLUDE.match(line)
            if directive:
                wrong = violation_of(root, modules, module, path, directive.group(1))
                if wrong:
                    violations.append(f"{place}:{number} {wrong}")
    return violations, files


def find_namesakes(root):
    """Headers with the same name: a reader who looks for one by its name must find that one alone."""
    homes = {}
    for top in (*PRODUCT, "tests", "bench", "cluster", "examples"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in HEADERS:
                homes.setdefault(path.name, []).append(path.relative_to(root).as_posix())
    return [
        f"{' and '.join(places)} have the same name: say in each name what the header is of"
        for places in homes.values()
        if len(places) > 1
    ]


def find_kernel_violations(root, compiler):
    """The compiler's messages on kernel headers that are not C++14, and the number of headers."""
    violations = []
    headers = [path for folder in KERNEL_FOLDERS for path in sorted((root / folder).rglob("*.hpp"))]
    for path in headers:
        place = path.relative_to(root).as_posix()
        done = subprocess.run(
            [
                compiler,
                "-std=c++14",
                "-fsyntax-only",
                "-fno-exceptions",
                "-pedantic-errors",
                "-I",
                "src",
                "-I",
                ".",
                "-x",
                "c++",
                "-",
            ],
            cwd=root,
            input=f'#include "{place}"\n',
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            violations.append(f"{place} is not C++14 without exceptions:\n{done.stderr}")
    return violations, len(headers)


# Their messages are read by users of the program alone.
PROGRAM_ONLY = ("app", "bench", "data", "doctor", "model", "plan", "report", "train")
LITERAL = re.compile(r'R"\(.*?\)"|"(?:[^"\\]|\\.)*"')


def find_word_violations(root, modules):
    """Literals with an option or key that base/wording has in the words of each client, and the number of files."""
    words = re.findall(r'Wording\{"([^" ]+)"', (root / "src/base/wording.cpp").read_text())
    words = [re.escape(word) for word in words if re.search(r"[-.]", word)]
    known = re.compile(rf"({'|'.join(words)})(?![a-z_=-]|\.[a-z])")
    violations, files = [], 0
    for path in product_files(root):
        place = path.relative_to(root).as_posix()
        module = module_of(modules, place)
        if (
            module is None
            or module.name in PROGRAM_ONLY
            or path.name.endswith("keys.cpp")
            or path.name == "wording.cpp"
        ):
            continue
        files += 1
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            code = "" if line.lstrip().startswith("//") else line
            for literal in LITERAL.findall(code):
                found = known.search(literal)
                if found and literal != f'"{found.group()}"':  # a whole literal names a key to look up
                    violations.append(
                        f"{place}:{number} says {found.group()} to every client: write a Term of base/wording.hpp"
                    )
    return violations, files


TORCH_ROOM = "python/nearstep/_torch_private.py"


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def private_chains(tree):
    """Lines and texts of the private names of PyTorch that a Python source has: imported ones, and attributes of torch
    or of what the source has imported or assigned from it."""
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    roots.add((alias.asname or alias.name).split(".")[0])
                    if any(map(is_private, alias.name.split("."))):
                        yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module.split(".")[0] == "torch":
            for alias in node.names:
                roots.add(alias.asname or alias.name)
                if any(map(is_private, (*node.module.split("."), alias.name))):
                    yield node.lineno, f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Attribute, ast.Name)):
            if chain_of(node.value)[0] in roots:
                roots.update(target.id for target in node.targets if isinstance(target, ast.Name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and chain_of(node)[0] in roots:
            yield node.lineno, ".".join(chain_of(node))


def chain_of(node):
    """The names of a chain of attributes; None in place of a root that is no name."""
    names = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else None, *names]


def find_private_violations(root):
    """Private names of PyTorch outside their room, and the number of files."""
    violations, files = [], 0
    for path in sorted((root / "python").rglob("*.py")):
        place = path.relative_to(root).as_posix()
        files += 1
        if place != TORCH_ROOM:
            violations += [
                f"{place}:{number} has {name}, a private name of PyTorch: take it from {TORCH_ROOM}"
                for number, name in private_chains(ast.parse(path.read_text()))
            ]
    return violations, files


# Each case plants one file in a clean tree and gives the expected report.
PLANTED = [
    (
        "src/base/a.cpp",
        '#include "config/run_settings.hpp"',
        "src/base/a.cpp:1 includes config/run_settings.hpp: base is on level 0",
    ),
    ("src/config/a.cpp", '#include "shard/partition.hpp"', "may not include shard on level 2"),
    ("src/report/a.cpp", '#include "mpi/exchange/scatter.hpp"', "report does not know exchange"),
    ("src/codec/a.hpp", '#pragma once\n#  include "csd/device.hpp"', "src/codec/a.hpp:2 includes csd/device.hpp"),
    ("src/csd/a.cpp", '#include "mpi/exchange/scatter.hpp"', "may not include exchange on level 4"),
    ("src/csd/a.cpp", '#include "src/train/loop.hpp"', "may not include train on level 14"),
    ("mpi/a.cpp", '#include "exchange/scatter.hpp"', "write the path from the root"),
    ("mpi/a.cpp", '#include "mpi/exchange/scatter.hpp"', "may not include exchange on level 4"),
    ("src/csd/a.cpp", '#include "device.hpp"', "write the path from the root"),
    ("src/csd/a.cpp", '#include "../train/loop.hpp"', "write the path from the root"),
    ("src/csd/a.cpp", "#include <mpi.h>", "mpi.h, a foreign header"),
    ("src/csd/a.cpp", '#include "mpi.h"', "mpi.h, a foreign header"),
    ("src/shard/a.cpp", "#include <toml++/toml.h>", "toml++/toml.h, a foreign header"),
    ("src/model/a.hpp", "#include <torch/torch.h>", "torch/torch.h, a foreign header"),
    ("src/train/a.cpp", "#include <ATen/ATen.h>", "ATen/ATen.h, a foreign header"),
    ("src/csd/a.cpp", "#include HEADER", "includes HEADER"),
    ("src/new/a.cpp", "", "src/new/a.cpp is in no module"),
    ("fpga/kernel/a.hpp", "#include <optional>\nstd::optional<int> value;", "fpga/kernel/a.hpp is not C++14"),
    ("fpga/kernel/a.hpp", "inline int f() { throw 1; }", "fpga/kernel/a.hpp is not C++14"),
    ("src/arith/a.hpp", "inline int f() { throw 1; }", "src/arith/a.hpp is not C++14"),
    ("tests/csd/device.hpp", "", "src/csd/device.hpp and tests/csd/device.hpp have the same name"),
    ("src/csd/a.cpp", 'f("Start again with --resume.");', "src/csd/a.cpp:1 says --resume to every client"),
    ("src/config/a.cpp", 'f(R"(: set csd.path = "x".)");', "src/config/a.cpp:1 says csd.path to every client"),
    ("python/nearstep/a.py", "import torch\nx = torch._C.f()", "python/nearstep/a.py:2 has torch._C, a private"),
    ("python/nearstep/a.py", "from torch.utils import _pytree", "python/nearstep/a.py:1 has torch.utils._pytree"),
    ("python/nearstep/a.py", "import torch._dynamo", "python/nearstep/a.py:1 has torch._dynamo"),
    ("python/nearstep/a.py", "import torch.autograd as a\na._f", "python/nearstep/a.py:2 has a._f"),
    ("python/nearstep/a.py", "import torch\nT = torch.Tensor\nT._f", "python/nearstep/a.py:3 has T._f"),
]
CLEAN = {
    "python/nearstep/_torch_private.py": "import torch\nf = torch._C._f\n",
    "python/nearstep/b.py": "import torch\nfrom ._torch_private import f\nself._f = torch.float.__name__\n",
    "src/base/error.hpp": "#include <string>\n",
    "src/base/wording.cpp": 'Wording{"--resume", "opt.resume()"}, Wording{"csd.path", "path"}, '
    'Wording{"config", "model"}',
    "src/config/checks.cpp": 'f("csd.path", "csd.path=x", "csd.paths"); // --resume\n',
    "src/train/loop.cpp": 'f("go on with --resume");',
    "src/config/run_settings.hpp": '#include "base/error.hpp"\n#include <sys/stat.h>\n',
    "src/config/load.cpp": '#include "config/run_settings.hpp"\n#include <toml++/toml.h>\n',
    "src/shard/partition.hpp": "",
    "src/csd/device.hpp": '#include "fpga/kernel/lane.hpp"\n// #include "train/loop.hpp"\n',
    "src/model/network.cpp": "#include <torch/torch.h>\n#include <ATen/ATen.h>\n",
    "src/train/loop.hpp": '#include "csd/device.hpp"\n#include "mpi/exchange/scatter.hpp"\n',
    "mpi/session.cpp": "#include <mpi.h>\n#include <unistd.h>\n",
    "mpi/exchange/scatter.hpp": '#include "shard/partition.hpp"\n',
    "fpga/kernel/lane.hpp": '#include "base/error.hpp"\ninline float twice(float x) { return x + x; }\n',
}


def report_on(files, modules, compiler):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        return (
            find_violations(root, modules)[0]
            + find_namesakes(root)
            + find_kernel_violations(root, compiler)[0]
            + find_word_violations(root, modules)[0]
            + find_private_violations(root)[0]
        )


def self_test(modules, compiler):
    failures = [f"a clean tree is refused: {line}" for line in report_on(CLEAN, modules, compiler)]
    for name, content, expected in PLANTED:
        report = report_on({**CLEAN, name: content}, modules, compiler)
        if len(report) != 1 or expected not in report[0]:
            failures.append(f"{content!r} in {name} is reported as {report}, not as {expected!r}")
    return failures, len(PLANTED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["layers", "kernels", "words", "private", "self_test"])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--compiler", default="g++")
    options = parser.parse_args()
    modules = read_modules(pathlib.Path(__file__).with_name("layers.txt"))
    if options.mode == "layers":
        violations, count = find_violations(options.root, modules)
        violations += find_namesakes(options.root)
    elif options.mode == "kernels":
        violations, count = find_kernel_violations(options.root, options.compiler)
    elif options.mode == "words":
        violations, count = find_word_violations(options.root, modules)
    elif options.mode == "private":
        violations, count = find_private_violations(options.root)
    else:
        violations, count = self_test(modules, options.compiler)
    for line in violations:
        print(line)
    print(f"{options.mode}: {count} checked, {len(violations)} wrong")
    return 1 if violations or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
