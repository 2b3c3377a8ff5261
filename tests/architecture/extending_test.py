"""docs/extending.md: another optimizer, codec and family of models, each in a copy of the sources, touch at most four files.
What names them compiles, their arithmetic runs, the Python package has them. With NEARSTEP_LONG=1 a program that has all three
is built; it trains, and Transformers loads what it exports.

    extending_test.py COMPILER LIBRARY...    LIBRARY: nearstep_codec and what it is linked with
"""
import importlib.util
import json
import os
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

COMPILER, *LIBRARIES = sys.argv[1:]
del sys.argv[1:]
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

# Gradient descent on the distance from a point, whose gradients go through the codec.
DESCENT = """
#include "codec/codec.hpp"
#include "shard/tile.hpp"
#include <cmath>
#include <cstdio>
int main() {
    using namespace nearstep;
    const auto codec = codec::make_codec({.name = "e5m2"});
    std::vector<float> at(shard::kTileElems), gradient(at.size()), decoded(at.size());
    std::vector<std::byte> payload(codec->payload_bytes());
    double first = 0, last = 0;
    for (int step = 0; step < 40; ++step) {
        last = 0;
        for (std::size_t i = 0; i < at.size(); ++i) {
            gradient[i] = at[i] - std::sin(static_cast<float>(i));
            last += gradient[i] * gradient[i];
            decoded[i] = 0;
        }
        first = step == 0 ? last : first;
        codec->encode(gradient, payload);
        codec->decode_add(payload, 0, decoded);
        for (std::size_t i = 0; i < at.size(); ++i) {
            at[i] -= 0.5F * decoded[i];
        }
    }
    std::printf("%g %d %d", codec::bytes_per_parameter({.name = "e5m2"}), codec->kernel_form().has_value(), last < 1e-6 * first);
}
"""


class Extension(unittest.TestCase):
    """A copy of the sources with a patch."""

    folders = ("src", "fpga", "python")

    def setUp(self):
        self.copy = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.copy)
        for folder in self.folders:
            shutil.copytree(ROOT / folder, self.copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for name in self.patches:
            done = subprocess.run(["git", "apply", str(HERE / name)], cwd=self.copy, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{done.stderr}: write tests/architecture/{name} anew")

    def assert_touches(self, section):
        """The files of the page's list; an entry that ends with "/" is a folder of a new file."""
        touched = sorted(re.findall(r"^\+\+\+ b/(.*)$", (HERE / self.patches[0]).read_text(), re.MULTILINE))
        text = (ROOT / "docs/extending.md").read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
        named = sorted(re.findall(r"^\d\. `([^`]+)`", text, re.MULTILINE))
        self.assertEqual([one if not name.endswith("/") or not one.startswith(name) else name for one, name in zip(touched, named, strict=True)], named)
        self.assertLessEqual(len(touched), 4)

    def compile(self, *arguments):
        done = subprocess.run([COMPILER, *FLAGS, *map(str, arguments)], cwd=self.copy, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])

    def said_by(self, program, *arguments):
        """Compiles the program with these sources and libraries, and runs it."""
        (self.copy / "program.cpp").write_text(program)
        self.compile("-O1", "program.cpp", *arguments, "-o", "program")
        return subprocess.run([self.copy / "program"], capture_output=True, text=True).stdout


class AnotherOptimizer(Extension):
    patches = ("another_optimizer.patch",)

    def test_it_touches_the_files_that_the_page_names(self):
        self.assert_touches("An optimizer")

    def test_what_names_optimizers_compiles(self):
        sources = {path.relative_to(self.copy) for path in (self.copy / "src").rglob("*.cpp") if "Optimizer::" in path.read_text(encoding="utf-8")}
        self.assertIn(pathlib.Path("src/csd/optimizer.cpp"), sources)
        for source in sorted({*sources, pathlib.Path("src/csd/engine_scalar.cpp"), pathlib.Path("fpga/kernel/updater.cpp")}):
            with self.subTest(source=source):
                self.compile("-fsyntax-only", source)

    def test_its_arithmetic_runs(self):
        said = self.said_by(PROGRAM, "src/csd/optimizer.cpp", *(f"src/base/{name}.cpp" for name in ("words", "error", "wording")))
        # moment1 = 0.5 * -6 + (1 + 0.25 * 4); master = 4 - 0.5 * sign(moment1)
        self.assertEqual(said, "SGD 4.5 -1 7")

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


class AnotherCodec(Extension):
    folders = ("src", "python", "mpi")
    patches = ("another_codec.patch",)

    def test_it_touches_the_files_that_the_page_names(self):
        self.assert_touches("A codec of gradients")

    def test_what_names_codecs_compiles(self):
        sources = {path.relative_to(self.copy) for path in (self.copy / "src").rglob("*.cpp")
                   if re.search(r"\b(Payload)?Codec::\w", path.read_text(encoding="utf-8"))}
        self.assertIn(pathlib.Path("src/config/checks.cpp"), sources)
        for source in sorted(sources - {pathlib.Path("src/codec/codec.cpp"), pathlib.Path("src/codec/topk.cpp")}):
            with self.subTest(source=source):
                self.compile("-fsyntax-only", source)

    def test_gradients_that_it_encodes_lead_down(self):
        # The library has the kernels, which are compiled with options of their own.
        sources = (f"src/codec/{name}.cpp" for name in ("codec", "kernels", "topk"))
        self.assertEqual(self.said_by(DESCENT, *sources, *LIBRARIES, "-lxxhash"), "1 0 1")

    def test_the_python_package_has_its_word(self):
        self.assertIn('"e5m2"', (self.copy / "python/nearstep/_starting/keywords.py").read_text())


class AnotherFamily(Extension):
    folders = ("src",)
    patches = ("another_family.patch",)

    def test_it_touches_the_files_that_the_page_names(self):
        self.assert_touches("A model")

    def test_what_names_families_compiles(self):
        found = importlib.util.find_spec("torch")
        if found is None:
            self.skipTest(f"torch is not installed in the environment of {sys.executable}")
        include = pathlib.Path(found.origin).parent / "include"
        for source in ("families/opt", "architecture", "hugging_face", "geometry"):
            with self.subTest(source=source):
                self.compile("-isystem", include, "-isystem", include / "torch/csrc/api/include", "-fsyntax-only", f"src/model/{source}.cpp")


@unittest.skipUnless("NEARSTEP_LONG" in os.environ, "it builds the whole program: run it with NEARSTEP_LONG=1")
class All(Extension):
    """A program with all three."""

    folders = ("src", "fpga", "python", "mpi", "launch", "bench", "cluster", "configs")
    patches = ("another_optimizer.patch", "another_codec.patch", "another_family.patch")

    def run_here(self, *words):
        done = subprocess.run([*map(str, words)], cwd=self.copy, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-4000:])
        return done.stdout

    def test_it_trains_and_transformers_loads_the_model(self):
        for name in ("CMakeLists.txt", "CMakePresets.json"):
            shutil.copy(ROOT / name, self.copy)
        self.run_here("cmake", "--preset", "release", "-DBUILD_TESTING=OFF", f"-DCMAKE_CXX_COMPILER={COMPILER}", f"-DNEARSTEP_PYTHON={sys.executable}")
        self.run_here("cmake", "--build", "build/release", "--target", "nearstep")
        (self.copy / "text.txt").write_text("to be, or not to be\n" * 2000)
        sets = {"data.train": '["text.txt"]', "csd.path": '"state"', "checkpoint.path": '"saved"', "checkpoint.every": 12, "train.steps": 12,
                "train.optimizer": '"signum"', "mode": '"su+o+c"', "compress.codec": '"e5m2"', "model.architecture": '"opt"', "train.learning_rate": 1e-3}
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        self.run_here("build/release/nearstep", "train", "configs/tiny.toml", "--site", "cluster/localhost", *words, "--json", "summary.json")
        losses = json.loads((self.copy / "summary.json").read_text())["losses"]
        self.assertLess(losses[-1], 0.8 * losses[0], losses)
        self.run_here("build/release/nearstep", "export", "saved/step-00000012.h5", "exported", "--format", "safetensors")
        if importlib.util.find_spec("transformers") is None:
            self.skipTest("transformers is not installed: what was exported is not loaded")
        said = self.run_here(sys.executable, "-c", "from transformers import AutoModelForCausalLM as M\n"
                             "model, info = M.from_pretrained('exported', output_loading_info=True)\n"
                             "print(type(model).__name__, *(len(info[key]) for key in ('missing_keys', 'unexpected_keys', 'mismatched_keys')))")
        self.assertEqual(said.strip(), "OPTForCausalLM 0 0 0")


if __name__ == "__main__":
    verdict.main()
