"""Runs on ordinary machines: shared checkpoint folders, outputs that are no files, drives that fail, files
that change.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

import program

FLUSHES_FAIL = """
#include <errno.h>
int fsync(int file) { (void)file; errno = EIO; return -1; }
int fdatasync(int file) { (void)file; errno = EIO; return -1; }
"""
# A call on a path with "broken" in it fails like a drive that is gone.
CALLS_FAIL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
static int fails(const char *path) { return path && strstr(path, "broken") ? (errno = EIO, 1) : 0; }
int open64(const char *path, int flags, ...) {
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    return fails(path) ? -1 : real(path, flags, mode);
}
int open(const char *path, int flags, ...) {
    va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more);
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    return fails(path) ? -1 : real(path, flags, mode);
}
int stat(const char *path, struct stat *to) {
    int (*real)(const char *, struct stat *) = (int (*)(const char *, struct stat *))dlsym(RTLD_NEXT, "stat");
    return fails(path) ? -1 : real(path, to);
}
int mkdir(const char *path, mode_t mode) {
    int (*real)(const char *, mode_t) = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
    return fails(path) ? -1 : real(path, mode);
}
"""


def indexes(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.h5") if ".rank-" not in path.name)


class Machine(program.Scenario):
    def setUp(self):
        super().setUp()
        self.shared = self.folder / "shared"

    def small(self, **keys):
        """The arguments of a short run on one rank."""
        return self.arguments(train__global_batch=4, train__evaluate_batches=1, **keys)

    def start(self, *words, file=program.PROGRAM, env=None, **options):
        """Starts the program itself, not a fork of it."""
        return subprocess.Popen(
            [file, *map(str, words)],
            cwd=program.ROOT,
            env=dict(program.environment(), **(env or {})),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            **options,
        )

    def run_one(self, *words, **options):
        """Runs the program, or a fork of it if the process has neither limits nor variables of its own."""
        process = self.start(*words, file=program.PROGRAM if options else program.PROGRAM_FORKED, **options)
        said, _ = process.communicate(timeout=program.HANG_S)
        return process.returncode, said

    def one(self, state, flags=(), **keys):
        return self.small(state=state, flags=flags, checkpoint__path=f'"{self.shared}"', **keys)

    # --- Checkpoint folders ---

    def test_runs_that_share_a_checkpoint_folder_keep_each_others(self):
        self.assertEqual(self.run_one(*self.one("first", train__steps=2))[0], 0)
        code, said = self.run_one(*self.one("second", train__steps=6, checkpoint__every=2, train__seed=5))
        self.assertEqual(code, 0, said)
        found = indexes(self.shared)
        self.assertEqual(found[1:], ["step-00000002.h5"])
        self.assertRegex(found[0], r"^run-[0-9a-f]{16}/step-00000006\.h5$")
        # --fresh elsewhere, and a branch of the first run elsewhere, leave both, too.
        for state, flags in (("third", ["--fresh"]), ("fourth", ["--from", self.shared / "step-00000002.h5"])):
            code, said = self.run_one(*self.one(state, flags, train__steps=4))
            self.assertEqual(code, 0, said)
        self.assertEqual(len(indexes(self.shared)), 4)
        self.assertLessEqual(set(found), set(indexes(self.shared)))
        # A run replaces only what is its own: the state of its csd.path and its checkpoints.
        code, said = self.run_one(*self.one("first", ["--fresh"], train__steps=3))
        self.assertEqual(code, 0, said)
        self.assertIn("step-00000003.h5", indexes(self.shared))
        self.assertNotIn("step-00000002.h5", indexes(self.shared))

    def test_a_run_in_a_shared_folder_goes_on_from_its_own_checkpoint(self):
        keys = {"train__steps": 4, "csd__durability": "checkpoint"}
        self.assertEqual(self.run_one(*self.one("first", **keys))[0], 0)
        self.assertEqual(self.run_one(*self.one("second", train__seed=5, **keys, train__stop_at=2))[0], 0)
        before = indexes(self.shared)
        code, said = self.run_one(*self.one("second", ["--resume"], train__seed=5, **keys))
        self.assertEqual(code, 0, said)
        self.assertIn("/run-", said)
        self.assertEqual(len(indexes(self.shared)), 2)
        self.assertIn("step-00000004.h5", before)
        self.assertIn("step-00000004.h5", indexes(self.shared))

    def test_runs_that_begin_together_keep_each_others(self):
        def words(number, *flags):
            return self.one(f"state-{number}", flags, train__steps=4, checkpoint__every=1, train__seed=number)

        runs = [self.start(*words(number)) for number in range(3)]
        for number, process in enumerate(runs):
            said, _ = process.communicate(timeout=program.HANG_S)
            code = process.returncode
            if code == 2:  # on a busy machine it may look at the folder after another's first checkpoint
                self.assert_states(said, self.shared, "--resume", "--fresh")
                code, said = self.run_one(*words(number, "--fresh"))
            self.assertEqual(code, 0, said)
        self.assertEqual(sorted(pathlib.Path(name).name for name in indexes(self.shared)), 3 * ["step-00000004.h5"])

    # --- Outputs ---

    def test_outputs_are_written_through_what_is_no_file(self):
        (self.folder / "link").symlink_to("target")
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(pipe.read_text().splitlines()))
        reader.start()
        code, said = self.run_one(
            *self.small(
                train__steps=3, flags=["--json", self.folder / "link", "--metrics", pipe, "--trace", "/dev/null"]
            )
        )
        self.assertEqual(code, 0, said)
        reader.join(60)
        self.assertTrue(
            (self.folder / "link").is_symlink() and pipe.is_fifo() and pathlib.Path("/dev/null").is_char_device()
        )
        self.assertEqual(json.loads((self.folder / "target").read_text())["steps"], 3)
        self.assertEqual([json.loads(line)["step"] for line in lines if '"loss"' in line], [1, 2, 3])

    def test_metrics_that_cannot_be_written_are_said_once(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        process = self.start(*self.small(train__steps=40, csd__durability="none", flags=["--metrics", pipe]))
        with pipe.open() as reader:
            reader.readline()
        said, _ = process.communicate(timeout=program.HANG_S)
        self.assertEqual(process.returncode, 0, said)
        self.assertEqual(said.count(f"the metrics file {pipe} lacks lines"), 1, said)

    def test_outputs_do_not_replace_what_is_read_or_each_other(self):
        config = self.folder / "own.toml"
        config.write_bytes((program.ROOT / "configs/tiny.toml").read_bytes())
        text = pathlib.Path(self.text)
        before = config.read_bytes(), text.read_bytes()
        for flags, words in (
            (["--json", text], "data.train"),
            (["--json", config], "config"),
            (["--metrics", self.folder / "new", "--trace", self.folder / "new"], "--metrics"),
        ):
            code, said = self.run_one("train", config, *self.small(train__steps=1, flags=flags)[2:])
            self.assertEqual(code, 2, said)
            self.assert_states(said, words, flags[0])
        self.assertEqual((config.read_bytes(), text.read_bytes()), before)

    def test_outputs_do_not_replace_state_or_checkpoints(self):
        index = pathlib.Path(
            self.train(ranks=1, train__steps=1, train__global_batch=4, train__evaluate_batches=1)["checkpoint"]
        )
        state = self.folder / "state"
        (self.folder / "link").symlink_to("state/rank-0.manifest")
        before = program.content(state)
        words = self.small(train__steps=1, flags=[])
        for path in (
            state / "rank-0.manifest",
            self.folder / "link",
            os.path.relpath(state / "rank-0.device-0.state", program.ROOT),
            index,
            state / "rank-9.manifest",
        ):
            for start in ((*words, "--fresh"), ("doctor", *words[1:]), ("bench", "csd"), ("bench", "network")):
                code, said = self.run_one(*start, "--json", path)
                self.assertEqual((code, len(said.splitlines())), (2, 1), said)
                self.assert_states(said, "--json", path, "lost")
            code, said = self.run_one("export", index, path)
            self.assertEqual((code, len(said.splitlines())), (2, 1), said)
            self.assert_states(said, path, "lost")
        self.assertEqual(program.content(state), before)

    def test_lost_output_is_said(self):
        plan = ["plan", "configs/gpt-7b.toml", "--site", "cluster/csd-pod"]
        for words, expected in ((plan, 2), (self.small(train__steps=2), 0)):
            with open("/dev/full", "w") as full:
                done = subprocess.run(
                    [program.PROGRAM, *map(str, words)],
                    cwd=program.ROOT,
                    env=program.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=full,
                    stderr=subprocess.PIPE,
                    text=True,
                    timeout=program.HANG_S,
                )
            self.assertEqual(done.returncode, expected, done.stderr)
            self.assertIn("standard output", done.stderr)

    def shell(self, script, *words):
        """Runs the program, which the script names "$@"."""
        done = subprocess.run(
            ["bash", "-c", script, "bash", program.PROGRAM, *map(str, words)],
            cwd=program.ROOT,
            env=program.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=program.HANG_S,
        )
        return done.returncode, done.stdout

    def test_closed_descriptors_do_not_become_files_of_the_run(self):
        words = self.small(train__steps=100000)
        process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", program.PROGRAM, *map(str, words)],
            cwd=program.ROOT,
            env=program.environment(),
        )
        self.addCleanup(process.kill)
        end = time.monotonic() + program.HANG_S
        while not list((self.folder / "state").glob("*.manifest")):
            self.assertLess(time.monotonic(), end)
            self.assertIsNone(process.poll())
            time.sleep(0.05)
        self.assertEqual([os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)], 3 * ["/dev/null"])
        process.terminate()
        self.assertEqual(process.wait(program.HANG_S), 75)

    # --- Limits of the process ---

    def test_limits_are_named(self):
        for script, words, expected, code in (
            ('ulimit -f 100; exec "$@"', {}, ["File too large", "ulimit -f"], 1),
            ('ulimit -n 40; exec "$@"', {"csd__per_rank": 64, "csd__io": '"threads"'}, ["ulimit -n"], 1),
        ):
            with self.subTest(script):
                found, said = self.shell(script, *self.small(train__steps=2, **words))
                self.assertEqual(found, code, said)
                for word in expected:
                    self.assertIn(word, said)

    def test_an_export_beyond_the_limit_is_one_sentence(self):
        index = self.train(ranks=1, train__steps=1, train__global_batch=4, train__evaluate_batches=1)["checkpoint"]
        code, said = self.shell('ulimit -f 100; exec "$@"', "export", index, self.folder / "model.h5")
        self.assertEqual((code, len(said.splitlines())), (2, 1), said)
        self.assert_states(said, "model.h5 (File too large)", "MB", "ulimit -f")

    def test_a_batch_that_does_not_fit_is_one_sentence(self):
        code, said = self.shell(
            'ulimit -v 8000000; exec "$@"',
            *self.arguments(train__steps=1, train__global_batch=1 << 22, train__micro_batch=1 << 22),
        )
        self.assertEqual(code, 1, said)
        self.assertEqual([line for line in said.splitlines() if "frame #" in line], [])
        self.assertIn("train.micro_batch", said)

    # --- Drives and files ---

    def library(self, source):
        (self.folder / "fails.c").write_text(source)
        compiler = shutil.which("cc")
        if compiler is None:
            self.skipTest("there is no C compiler")
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-o", self.folder / "fails.so", self.folder / "fails.c", "-ldl"], check=True
        )
        return {"LD_PRELOAD": str(self.folder / "fails.so")}

    def test_a_drive_that_fails_is_no_mistake_of_the_users(self):
        for source, state in ((FLUSHES_FAIL, "state"), (CALLS_FAIL, "broken/state"), (CALLS_FAIL, "broken")):
            with self.subTest(state):
                code, said = self.run_one(*self.small(train__steps=2, state=state), env=self.library(source))
                self.assertEqual(code, 1, said)
                self.assertNotIn("permissions", said)

    # --- Slurm and limits ---

    def test_a_single_process_in_a_session_of_slurm_needs_no_pmix(self):
        session = {f"SLURM_{name}": "1" for name in ("NTASKS", "NNODES", "TASKS_PER_NODE", "JOB_ID", "JOBID")}
        session |= {f"SLURM_{name}": "0" for name in ("STEP_ID", "STEPID", "PROCID", "LOCALID")} | {
            "SLURM_NODELIST": os.uname().nodename
        }
        plan = ["plan", "configs/gpt-7b.toml", "--site", "cluster/csd-pod", "--nodes", "1"]
        code, said = self.run_one(*plan, env=session)
        self.assertEqual(code, 0, said)
        code, said = self.run_one(*plan, env={**session, "SLURM_STEP_NUM_TASKS": "2"})
        self.assertEqual(code, 2, said)
        self.assert_states(said, "srun", "2 tasks", "PMI")
        for where in ({}, session):  # the launcher of another MPI, also on the hosts of a job
            code, said = self.run_one(*plan, env={**where, "PMI_SIZE": "2", "PMI_RANK": "0"})
            self.assertEqual((code, len(said.splitlines())), (2, 1), said)
            self.assert_states(said, "another MPI", "2 processes", "nearstep-run")

    def test_a_run_fits_into_the_memory_of_its_cgroup(self):
        group, limit = pathlib.Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        if not group.is_dir():
            group, limit = pathlib.Path("/sys/fs/cgroup"), "memory.max"
        group /= f"nearstep-test-{os.getpid()}"
        try:
            group.mkdir()
            self.addCleanup(self.remove_group, group)
            (group / limit).write_text("800M")
            subprocess.run(["sh", "-c", f"echo $$ > {group}/cgroup.procs"], check=True, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"no cgroup can be used here: {error}")
        words = self.small(
            train__steps=1,
            model__layers=16,
            model__width=512,
            model__heads=8,
            model__context=32,
            model__vocabulary=320,
            csd__durability="none",
        )
        done = subprocess.run(
            ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", program.PROGRAM, *map(str, words)],
            cwd=program.ROOT,
            env=program.environment(),
            text=True,
            capture_output=True,
            timeout=program.HANG_S,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @staticmethod
    def remove_group(group):
        for _ in range(20):  # a helper of Open MPI's ends a little later
            try:
                return group.rmdir()
            except OSError:
                time.sleep(0.2)

    def test_the_launchers_count_what_the_cgroup_leaves(self):
        root = self.folder / "machine"
        for path, text in {
            "proc/meminfo": "MemTotal: 64000000 kB\nMemAvailable: 32000000 kB",
            "proc/self/cgroup": "0::/slice/job",
            "proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw",
            "sys/fs/cgroup/slice/memory.max": "4000000000",
            "sys/fs/cgroup/slice/memory.current": "3000000000",
            "sys/fs/cgroup/slice/memory.stat": "inactive_file 500000000\nactive_file 0",
            "sys/fs/cgroup/slice/job/memory.max": "max",
            "sys/fs/cgroup/slice/job/cpu.max": "100000 100000",
        }.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text + "\n")
        sys.path.insert(0, str(program.ROOT / "python"))
        from nearstep_run import _machine

        self.assertEqual((_machine.available_bytes(str(root)), _machine.usable_cores(str(root))), (1500000000, 1))


if __name__ == "__main__":
    program.main()
