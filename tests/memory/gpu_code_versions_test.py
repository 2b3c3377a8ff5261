"""Compiles every kernel for a GPU by the NVRTC that each PyTorch for CUDA 12 and 13 brings, for all GPUs since Turing.
Where there is a GPU, it runs them and compares their bits with the host's, and those of a training.

Installs them from the index, or takes them from NEARSTEP_NVRTC, a folder with a folder of each version; runs with
tests/run --long.
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
HERE = pathlib.Path(__file__).resolve().parent
HAS_GPU = pathlib.Path("/dev/nvidiactl").exists()
# Tests that compare what a GPU does with what the host does.
ON_GPU = {"memory_tests": "Gpu.*", "codec_tests": "*Gpu*", "csd_tests": "*InGpuMemory*:*GpuEngines*:*GpuDevices*"}


def known(library):
    """The compute capabilities that this library makes code for."""
    import ctypes

    nvrtc = ctypes.CDLL(str(library))
    count = ctypes.c_int()
    nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    list_of = (ctypes.c_int * count.value)()
    nvrtc.nvrtcGetSupportedArchs(list_of)
    return set(list_of)


def library_of(package, version, folder):
    """Returns the NVRTC of that version; None if NEARSTEP_NVRTC has no such version."""
    if "NEARSTEP_NVRTC" in os.environ:
        return next(pathlib.Path(os.environ["NEARSTEP_NVRTC"], version).glob("libnvrtc.so.*"), None)
    words = ["install", "-q", "--disable-pip-version-check", "--no-deps", "--target", folder]
    subprocess.run([sys.executable, "-m", "pip", *words, f"{package}=={version}"], check=True, timeout=LIMIT_S)
    return next(pathlib.Path(folder).glob("nvidia/*/lib/libnvrtc.so.*"))


class GpuCodeVersions(unittest.TestCase):
    def run_one(self, *command, environment):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("SKIPPED", done.stdout)
        return done.stdout

    def run_on_gpu(self, cuda, environment):
        """The digest of the masters of a training."""
        if cuda == "12":
            environment = environment | {"LD_PRELOAD": str(programs.find("without_nvrtc_13"))}
            done = subprocess.run(
                [programs.find("memory_tests"), "--gtest_filter=Cuda/GpuCodeTest.*/13"],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            self.assertIn("there is no NVRTC of CUDA 13", done.stdout)
        for program, tests in ON_GPU.items():
            print(
                program, self.run_one(programs.find(program), f"--gtest_filter={tests}", environment=environment)[-60:]
            )
        digests = set()
        for device in ("gpu", "host"):
            with tempfile.TemporaryDirectory(dir="/dev/shm") as state:
                words = self.run_one(
                    sys.executable, HERE / "gpu_code_worker.py", state, device, environment=environment
                ).split()
            digests.add(words[-1])
        (digest,) = digests
        return digest

    def test_every_kernel(self):
        digests = {}
        for package, version, pytorch, computes in NVRTC:
            with self.subTest(f"{package} {version} of PyTorch {pytorch}"), tempfile.TemporaryDirectory() as folder:
                library = library_of(package, version, folder)
                if library is None:
                    self.skipTest("it is not in NEARSTEP_NVRTC")
                self.assertLessEqual(computes, known(library))
                cuda = version.split(".", 1)[0]
                environment = {
                    **os.environ,
                    "LD_LIBRARY_PATH": f"{library.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}",
                    "XDG_CACHE_HOME": f"{folder}/cache",
                }
                self.run_one(
                    programs.find("memory_tests"),
                    f"--gtest_filter=Cuda/GpuCodeTest.*/{cuda}",
                    environment=environment | {"NEARSTEP_LONG": "1"},
                )
                if HAS_GPU:
                    digests[version] = self.run_on_gpu(cuda, environment)
                    print(version, digests[version], flush=True)
        self.assertLessEqual(len(set(digests.values())), 1)


if __name__ == "__main__":
    verdict.main()
