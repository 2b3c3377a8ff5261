"""Runs the real program for the scenario tests. Standard library only."""

import atexit
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
import command_server
import facts
import forked
import open_mpi
import programs
import verdict

PROGRAM = pathlib.Path(os.environ.get("NEARSTEP_PROGRAM", ROOT / "build/release/nearstep"))
# Starts the program as a fork (tests/support/forked.py). For all but tests of the program file itself.
PROGRAM_FORKED = programs.find("start_fork") or PROGRAM
COMMAND_SERVER = programs.find("command_server")
SERVERS = command_server.CommandServers(str(ROOT / "launch/ranks"), ROOT)
# Seconds after which a process hangs. No test checks how fast it is: a machine that others use, or whose disk they use,
# may stand still for minutes.
HANG_S = 1200
TINY = "configs/tiny.toml"
# Such a model has as many parameters as the config's, but a third of its tokens: a step takes two thirds of the time.
SHORT_ROWS = {"model__context": 32, "model__vocabulary": 320}
SHARED_DATA = pathlib.Path(os.environ.get("NEARSTEP_SHARED_DATA", ROOT / "../shared/data"))


def environment(fault="", threads=1, timeout=HANG_S):
    """The environment of one run; fault: a planned fault, see src/base/fault_point.hpp."""
    return dict(
        os.environ,
        OMP_NUM_THREADS=str(threads),
        NEARSTEP_TIMEOUT=str(timeout),
        NEARSTEP_FAULT=fault,
        **open_mpi.environment(),
    )


def call(*words, **variables):
    """The finished process of a command that is not the program's, with these variables besides."""
    return subprocess.run(
        [*map(str, words)],
        cwd=ROOT,
        env={**environment(), **variables},
        text=True,
        capture_output=True,
        timeout=HANG_S,
        stdin=subprocess.DEVNULL,
    )


def start_forks(threads=1):
    """A process that has loaded the program, if its library was built; PROGRAM_FORKED then starts forks of it."""
    if PROGRAM_FORKED == PROGRAM:
        return
    server = forked.Loaded(
        "library", PROGRAM, programs.find("forked"), PROGRAM, environment=environment(threads=threads)
    )
    atexit.register(server.close)
    os.environ.update(server.environment)


def run(ranks, *arguments, fault="", threads=1):
    """The finished process of `nearstep arguments` on `ranks` ranks; 0 ranks: without mpirun."""
    words = [str(PROGRAM_FORKED), *map(str, arguments)]
    if ranks:
        words = [str(ROOT / "launch/ranks"), str(ranks), *words]
    return subprocess.run(
        words,
        cwd=ROOT,
        env=environment(fault, threads),
        text=True,
        errors="replace",
        capture_output=True,
        timeout=HANG_S + 10,
        stdin=subprocess.DEVNULL,
    )


def succeed(ranks, *arguments, **options):
    """Like run(), for a command that must succeed."""
    done = run(ranks, *arguments, **options)
    assert done.returncode == 0, f"{done.args}\n{done.stderr}\n{done.stdout}"
    return done


start_forks()
atexit.register(SERVERS.close)  # before the process that started its forks ends


def run_logits(*arguments):
    """Runs logits.cpp."""
    subprocess.run(
        [PROGRAM.parent / "tests/scenarios/logits", *map(str, arguments)], env=environment(), check=True, timeout=HANG_S
    )


def run_in_turn(ranks, *arguments, fault="", threads=1):
    """Like run(), but in processes that ran other commands before; for commands that need no fresh start."""
    if not COMMAND_SERVER or not ranks:
        return run(ranks, *arguments, fault=fault, threads=threads)
    is_forked = PROGRAM_FORKED != PROGRAM and os.environ["NEARSTEP_FORKS"].startswith(f"{threads}:")
    words = [str(PROGRAM_FORKED), "command_server"] if is_forked else [str(COMMAND_SERVER)]
    return SERVERS.run(words, ranks, arguments, environment(timeout=86400, threads=threads), fault, HANG_S)


def run_all(runs, **options):
    """The finished processes of all (ranks, arguments), run in parallel, because a start mostly waits for mpirun."""
    with concurrent.futures.ThreadPoolExecutor(2 * os.cpu_count()) as pool:
        return list(pool.map(lambda one: run(one[0], *one[1], **options), runs))


def sweep(cases, *few):
    """All cases in `tests/run --long`, else only those with these numbers."""
    cases = list(cases)
    if "NEARSTEP_LONG" in os.environ:
        return cases
    print(f"\n{len(few)} of {len(cases)} cases (all with tests/run --long)", flush=True)
    return [cases[number] for number in few]


def write_text(path):
    """Writes a text to train on; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    words = "the owner of each tile adds what the ranks send and writes it near its storage ".split()
    lines = (" ".join(words[(i * 7 + j * j) % len(words)] for j in range(12)) for i in range(3000))
    path.write_text("\n".join(lines))
    return path


def make_script(path, text):
    """Writes a program in bash; returns its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def content(folder):
    """The contents of all files in a folder, by path."""
    return {path: path.read_bytes() for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file()}


def padding_of(summary):
    """Elements that links carry per parameter: whole tiles, of which the last is padded."""
    return -(-summary["parameters"] // 65536) * 65536 / summary["parameters"]


def evaluation_starts(length, rows, context):
    """Returns where the held-out rows begin: spread evenly over the text."""
    return [(length - context) * row // rows for row in range(rows)]


class Scenario(facts.States, unittest.TestCase):
    """Gives each test its own folder and a text to train on, and train() with its summary. Runs reuse the same
    processes, unless starts_anew gives each run its own."""

    starts_anew = False

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nearstep-scenario-", dir=scratch()))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.text = write_text(self.folder / "text.txt")

    def arguments(self, config=TINY, state="state", flags=(), **keys):
        """The arguments of train; keys: `train__steps=3` stands for --set train.steps=3."""
        if config == TINY and not {"model__vocabulary", "model__width"} & keys.keys():
            keys = {**SHORT_ROWS, **keys}
        keys = {"data__train": f'"{self.text}"', "csd__path": f'"{self.folder / state}"', **keys}
        settings = [f"--set={key.replace('__', '.')}={value}" for key, value in keys.items()]
        return ["train", config, *settings, *flags]

    def train(self, ranks=2, threads=1, **options):
        """Makes a run that must succeed; returns its summary."""
        summary = self.folder / "summary.json"
        arguments = self.arguments(**options) + ["--json", summary]
        done = (run if self.starts_anew else run_in_turn)(ranks, *arguments, threads=threads)
        self.assertEqual(done.returncode, 0, f"{arguments}\n{done.stderr}\n{done.stdout}")
        return json.loads(summary.read_text())

    def assert_same_bits(self, one, other):
        self.assertEqual(one["losses"], other["losses"])
        self.assertEqual(one["masters_xxh3"], other["masters_xxh3"])
        self.assertEqual(one["heldout_loss"], other["heldout_loss"])

    def assert_goes_on(self, whole, *parts):
        """Expects the losses of the whole run from its parts, and its masters from the last."""
        self.assertEqual([loss for part in parts for loss in part["losses"]], whole["losses"])
        self.assertEqual(parts[-1]["masters_xxh3"], whole["masters_xxh3"])

    def assert_refusal(self, done, *facts):
        """Expects exit code 2 and a message that states these facts."""
        self.assertEqual(done.returncode, 2, f"{done.args}\n{done.stdout}\n{done.stderr}")
        self.assert_states(done.stderr, *facts)

    def assert_seen(self, look):
        """`look` makes a run and says whether one thing began before another one ended. A machine that stands still may
        hide that, but not in each of ten runs."""
        self.assertTrue(any(look() for _ in range(10)))

    def assert_bytes(self, measured, wanted, padding):
        self.assertGreaterEqual(measured, wanted * 0.999)
        self.assertLessEqual(measured, wanted * padding * 1.001)

    def assert_close(self, one, other, relative):
        self.assertEqual(len(one), len(other))
        for step, (a, b) in enumerate(zip(one, other)):
            self.assertLessEqual(abs(a - b), relative * abs(a), f"step {step + 1}: {a} and {b}")


def scratch():
    """A folder below the build tree, whose disk has direct I/O, which tmpfs may lack."""
    folder = PROGRAM.parent / "scenarios"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


main = verdict.main
