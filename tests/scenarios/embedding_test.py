"""A third-party program, built only from an installed nearstep: tests/embedding."""

import os
import re
import shutil
import subprocess
import sys

import program

BUILD = program.PROGRAM.parent


class Embedding(program.Scenario):
    @classmethod
    def setUpClass(cls):
        """Installs nearstep and builds the program, reusing its previous build folder."""
        work = BUILD / "embedding"
        shutil.rmtree(work / "installed", ignore_errors=True)
        torch = subprocess.run(
            [sys.executable, "-c", "import torch; print(torch.utils.cmake_prefix_path)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        environment = dict(os.environ, CCACHE_BASEDIR=str(program.ROOT), CCACHE_NOHASHDIR="1")
        if shutil.which("ccache"):
            environment["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
        for command in (
            ["cmake", "--install", BUILD, "--prefix", work / "installed"],
            [
                "cmake",
                "-S",
                program.ROOT / "tests/embedding",
                "-B",
                work / "build",
                f"-DCMAKE_PREFIX_PATH={work / 'installed'};{torch}",
            ],
            ["cmake", "--build", work / "build"],
        ):
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment
            )
            assert done.returncode == 0, done.stdout
        cls.command = [str(program.ROOT / "launch/ranks"), "2", str(work / "build/vision_transformer")]

    def train(self, state, *arguments):
        return program.call(*self.command, self.folder / state, *arguments)

    def results(self, done):
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        losses = [tuple(map(float, pair)) for pair in re.findall(r"loss (\S+) in memory (\S+)", done.stdout)]
        return losses, re.search(r"masters (\w+)", done.stdout).group(1)

    def test_it_equals_adamw_in_memory_and_goes_on_with_its_bits_when_killed(self):
        losses, masters = self.results(self.train("whole"))
        self.assertEqual(len(losses), 50)
        for ours, in_memory in losses:
            self.assertLessEqual(abs(ours - in_memory), 1e-5)
        self.assertLess(losses[-1][0], losses[0][0] - 0.5)
        killed = self.train("parts", 23)
        self.assertNotEqual(killed.returncode, 0)
        self.assertEqual(killed.stdout.count("in memory"), 22, killed.stdout + killed.stderr)
        rest, masters_of_parts = self.results(self.train("parts"))
        self.assertIn(len(rest), (28, 29))
        self.assertEqual(rest, losses[-len(rest) :])
        self.assertEqual(masters_of_parts, masters)

    def test_few_headers_are_installed(self):
        headers = [path.name for path in (BUILD / "embedding/installed/include").rglob("*.hpp")]
        self.assertIn("run.hpp", headers)
        self.assertLessEqual(len(headers), 20, sorted(headers))

    def test_what_is_installed_needs_no_pytorch(self):
        library = next((BUILD / "embedding/installed/lib").glob("libnearstep.so*"))
        lines = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout.splitlines()
        needed = [line.split()[0] for line in lines]  # without addresses, which may contain any letters
        self.assertTrue(any("libmpi" in name for name in needed), needed)
        self.assertEqual([name for name in needed if "torch" in name or "c10" in name], [])


if __name__ == "__main__":
    program.main()
