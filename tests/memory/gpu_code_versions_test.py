"""Compiles every kernel for a GPU by the NVRTC that each PyTorch for CUDA 12 and 13 brings, for all GPUs since Turing.

Installs them from the index; runs with tests/run --long.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import programs
import verdict

# The package; its version; the first PyTorch that came with it; machine code that it must know how to make.
NVRTC = (
    ("nvidia-cuda-nvrtc-cu12", "12.1.105", "2.4", {75, 80, 86, 89, 90}),
    ("nvidia-cuda-nvrtc-cu12", "12.4.127", "2.5", {75, 80, 86, 89, 90}),
    ("nvidia-cuda-nvrtc-cu12", "12.6.77", "2.7", {75, 80, 86, 89, 90}),
    ("nvidia-cuda-nvrtc-cu12", "12.8.93", "2.8", {75, 80, 86, 89, 90, 100, 120}),
    ("nvidia-cuda-nvrtc", "13.0.88", "2.11", {75, 80, 86, 89, 90, 100, 120}),
)
LIMIT_S = 600


def known(library):
    """The compute capabilities that this library makes code for."""
    import ctypes

    nvrtc = ctypes.CDLL(str(library))
    count = ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    list_of = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(list_of)
    return set(list_of)


class GpuCodeVersions(unittest.TestCase):
    def test_every_kernel(self):
        tests = programs.find("memory_tests")
        for package, version, pytorch, computes in NVRTC:
            with self.subTest(f"{package} {version} of PyTorch {pytorch}"), tempfile.TemporaryDirectory() as folder:
                words = ["install", "-q", "--disable-pip-version-check", "--no-deps", "--target", folder]
                subprocess.run(
                    [sys.executable, "-m", "pip", *words, f"{package}=={version}"], check=True, timeout=LIMIT_S
                )
                (library,) = pathlib.Path(folder).glob("nvidia/*/lib/libnvrtc.so.*")
                self.assertLessEqual(computes, known(library))
                cuda = version.split(".", 1)[0]
                done = subprocess.run(
                    [tests, f"--gtest_filter=Cuda/GpuCodeTest.*/{cuda}"],
                    env={**os.environ, "LD_LIBRARY_PATH": str(library.parent), "NEARSTEP_LONG": "1"},
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=LIMIT_S,
                )
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertNotIn("SKIPPED", done.stdout)


if __name__ == "__main__":
    verdict.main()
