"""docs/extending.md: another optimizer, in a copy of the sources, touches at most four files. All that names optimizers
compiles with it, its arithmetic runs, and the Python package has its class.

    extending_test.py COMPILER
"""
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE.parent / "support"))
import verdict

COMPILER = sys.argv.pop(1)
PATCH = HERE / "another_optimizer.patch"
FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-ffp-contract=off", "-I.", "-Isrc"]
PROGRAM = """
#include "arith/update_lane.hpp"
#include "csd/optimizer.hpp"
#include <cstdio>
int main() {
    using namespace nearstep;
    arith::UpdateScalars scalars;
    scalars.step_size = 0.5F;
    scalars.beta1 = 0.5F;
    scalars.gradient_decay = 0.25F;
    scalars.optimizer = parse_word<csd::Optimizer>("optimizer", "signum");
    float master = 4, moment1 = -6, moment2 = 7;
    arith::update_lane(scalars.optimizer, scalars, 1.0F, master, moment1, moment2);
    std::printf("%s %g %g %g", csd::moments_of(scalars.optimizer), master, moment1, moment2);
}
"""


class AnotherOptimizer(unittest.TestCase):
    def setUp(self):
        self.copy = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.copy)
        for folder in ("src", "fpga", "python"):
            shutil.copytree(ROOT / folder, self.copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        done = subprocess.run(["git", "apply", str(PATCH)], cwd=self.copy, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{done.stderr}: write tests/architecture/another_optimizer.patch anew")

    def compile(self, *arguments):
        done = subprocess.run([COMPILER, *FLAGS, *map(str, arguments)], cwd=self.copy, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])

    def test_it_touches_the_four_files_that_the_page_names(self):
        touched = re.findall(r"^\+\+\+ b/(.*)$", PATCH.read_text(), re.MULTILINE)
        page = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
        self.assertEqual(sorted(touched), sorted(re.findall(r"^\d\. `([^`]+)`", page, re.MULTILINE)))
        self.assertLessEqual(len(touched), 4)

    def test_what_names_optimizers_compiles(self):
        sources = {path.relative_to(self.copy) for path in (self.copy / "src").rglob("*.cpp") if "Optimizer::" in path.read_text(encoding="utf-8")}
        self.assertIn(pathlib.Path("src/csd/optimizer.cpp"), sources)
        for source in sorted({*sources, pathlib.Path("src/csd/engine_scalar.cpp"), pathlib.Path("fpga/kernel/updater.cpp")}):
            with self.subTest(source=source):
                self.compile("-fsyntax-only", source)

    def test_its_arithmetic_runs(self):
        (self.copy / "program.cpp").write_text(PROGRAM)
        self.compile("-O1", "program.cpp", "src/csd/optimizer.cpp", *(f"src/base/{name}.cpp" for name in ("words", "error", "wording")), "-o", "program")
        done = subprocess.run([self.copy / "program"], capture_output=True, text=True)
        # moment1 = 0.5 * -6 + (1 + 0.25 * 4); master = 4 - 0.5 * sign(moment1)
        self.assertEqual(done.stdout, "SGD 4.5 -1 7")

    def test_the_python_package_has_its_class(self):
        if importlib.util.find_spec("nearstep") is None or importlib.util.find_spec("torch") is None:
            self.skipTest(f"torch or nearstep is not installed in the environment of {sys.executable}")
        (engine,) = map(str, pathlib.Path(importlib.util.find_spec("nearstep").origin).parent.glob("_engine.*so"))
        code = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("nearstep._engine", {engine!r})
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])
sys.path.insert(0, {str(self.copy / "python")!r})
import nearstep, torch
print(nearstep.__all__, nearstep.Signum(torch.nn.Linear(2, 2), clip_norm=1).defaults)
"""
        done = subprocess.run([sys.executable, "-c", code], cwd=self.copy, capture_output=True, text=True)
        self.assertIn("'Signum'", done.stdout, done.stderr)
        self.assertIn("'momentum': 0.9", done.stdout)


if __name__ == "__main__":
    verdict.main()
