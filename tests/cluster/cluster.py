"""Virtual hosts for the cluster tests, and runs on them. Standard library only."""

import ctypes
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scenarios"))
import program  # noqa: E402
import verdict  # noqa: E402

SCRIPT = "tests/cluster/train_script.py"
SITE = program.ROOT / "cluster/virtual-hosts"
PREFIX = "nst"
HOSTS = [f"{PREFIX}{i}" for i in (1, 2, 3, 4)]


def environment():
    """Uses separate hosts from those that a user has started."""
    return dict(
        os.environ,
        NEARSTEP_PROGRAM=str(program.PROGRAM_FORKED),
        NEARSTEP_VHOSTS=str(scratch()),
        OMP_NUM_THREADS="1",
        NEARSTEP_VHOSTS_PREFIX=PREFIX,
        NEARSTEP_VHOSTS_NET="10.78.0",
        NEARSTEP_TIMEOUT=str(program.HANG_S),
    )


@functools.cache
def scratch():
    folder = program.PROGRAM.parent / "cluster" / pathlib.Path(sys.argv[0]).stem.removesuffix("_test")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


# Each host mounts its own at /mnt.
DISKS = scratch() / "disks"


def take_own_names():
    """Gives this process and those that it starts hosts of their own: other test programs have some of the same names
    and addresses. Network namespaces have their names in these folders, and hosts share no network but their own
    bridge."""
    new_mounts = 0x00020000
    if ctypes.CDLL(None, use_errno=True).unshare(new_mounts) != 0:
        verdict.end_skipped(
            f"this machine permits no mounts for one program ({os.strerror(ctypes.get_errno())}): run this as root"
        )
    must("mount", "--make-rprivate", "/")
    for folder in ("/run/netns", "/etc/netns"):
        os.makedirs(folder, exist_ok=True)
        must("mount", "-t", "tmpfs", "tmpfs", folder)


def call(*command, timeout=program.HANG_S):
    """Runs a command; returns the finished process, with output as text."""
    return subprocess.run(
        [str(word) for word in command],
        cwd=program.ROOT,
        env=environment(),
        text=True,
        capture_output=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )


def must(*command, timeout=program.HANG_S):
    """Runs a command that must succeed; returns its standard output."""
    done = call(*command, timeout=timeout)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def vhosts(*arguments):
    return must(SITE / "vhosts", *arguments)


def skip_unless(*probes):
    """Ends the test program with a message if the machine lacks something."""
    for probe in probes:
        done = call(probe, "probe")
        if done.returncode == verdict.SKIPPED:
            verdict.end_skipped(done.stderr)
        if done.returncode != 0:
            raise AssertionError(done.stderr)


class Cluster(program.Scenario):
    """Virtual hosts like those of the site cluster/virtual-hosts, with their own names."""

    hosts = HOSTS

    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup(call, SITE / "vhosts", "down")
        vhosts("up", len(cls.hosts))

    def setUp(self):
        super().setUp()
        self.site = self.folder / "site"
        self.site.mkdir()
        text = (SITE / "site.toml").read_text().replace('"nsh', f'"{PREFIX}')
        text = text.replace(json.dumps(HOSTS), json.dumps(self.hosts))
        (self.site / "site.toml").write_text(text.replace("runs/virtual-hosts", str(self.folder)))
        for host in self.hosts:
            # The folder itself stays, because hosts have mounted it.
            for entry in (DISKS / host).iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def start_no_forks(self):
        """The programs of this test load their libraries themselves (tests/support/forked.py)."""
        self.enterContext(unittest.mock.patch.object(program, "PROGRAM_FORKED", program.PROGRAM))

    def settings(self, **keys):
        keys = {"data__train": f'"{self.text}"', **keys}
        return [f"--set={key.replace('__', '.')}={value}" for key, value in keys.items()]

    def mpirun(self, *options, ranks=8, **keys):
        """Runs launch/mpirun; returns the finished process."""
        return call("launch/mpirun", "configs/tiny.toml", self.site, "-n", ranks, *options, *self.settings(**keys))

    def noting_threads(self):
        """(file, environment): a program that adds its OMP_NUM_THREADS to the file whenever it trains."""
        threads = self.folder / "threads"
        wrapper = program.make_script(
            self.folder / "program",
            f'[[ $1 != train ]] || echo "$OMP_NUM_THREADS" >>{threads}\nexec {program.PROGRAM} "$@"',
        )
        noting = dict(environment(), NEARSTEP_PROGRAM=str(wrapper))
        del noting["OMP_NUM_THREADS"]
        return threads, noting

    def with_remote(self, text):
        """The key of a replacement, in bash, for the site's remote program."""
        path = program.make_script(self.folder / "remote", text)
        return {"hosts__remote": f'"{path}"'}

    def start(self, metrics, said, ranks, *options, **keys):
        """Starts launch/mpirun with its output in a file: a daemon of Open MPI may hold a pipe longer."""
        words = [
            "launch/mpirun",
            "configs/tiny.toml",
            self.site,
            "-n",
            str(ranks),
            *options,
            "--metrics",
            metrics,
            *self.settings(**keys),
        ]
        with said.open("w") as file:
            return subprocess.Popen(words, cwd=program.ROOT, env=environment(), stdout=file, stderr=subprocess.STDOUT)

    def check_cut_link(self, words, ranks, **keys):
        """Cuts nst2's cable during a run: all ranks and mpirun end, far before a hang, with these words of one that did
        not take part.
        """
        metrics = self.folder / "metrics.jsonl"
        said = self.folder / "said"
        running = self.start(
            metrics, said, ranks, "--fresh", **{**keys, "train__steps": 100000, "exchange__timeout_s": 10}
        )
        wait_for_steps(metrics, 5, running.poll)
        vhosts("link", self.hosts[1], "down")
        try:
            code = running.wait(timeout=program.HANG_S)
            self.assertEqual(code, 1, said.read_text())
            self.assertRegex(said.read_text(), "(?i)another rank .*" + words)
            end = time.monotonic() + program.HANG_S
            while still := [rank for host in self.hosts for rank in ranks_on(host)]:
                self.assertLess(time.monotonic(), end, f"ranks live on: {still}")
                time.sleep(0.5)
        finally:
            vhosts("link", self.hosts[1], "up")

    def train(self, *options, ranks=8, **keys):
        """Runs a training that must succeed; returns its summary."""
        summary = self.folder / "summary.json"
        done = self.mpirun("--fresh", "--json", summary, *options, ranks=ranks, **keys)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return json.loads(summary.read_text())


def ranks_on(host):
    """Processes of nearstep there. A daemon of Open MPI without its link lives until TCP gives the connection up."""
    found = []
    for pid in must("ip", "netns", "pids", host).split():
        try:
            name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        except FileNotFoundError:
            continue
        found += [int(pid)] if name == "nearstep" or name.startswith("fork-") else []
    return found


def kill_a_rank_on(host):
    os.kill(ranks_on(host)[0], signal.SIGKILL)


def wait_for_steps(metrics, steps, end_of):
    """Waits until the metrics file, or a script's file without other lines, has the lines of that many steps. end_of:
    how the run ended, or None."""
    for look in range(20 * program.HANG_S):
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        if sum('"loss"' in line or metrics.suffix != ".jsonl" for line in lines) >= steps:
            return
        if look % 40 == 39 and (end := end_of()) is not None:
            raise AssertionError(f"{metrics} has no {steps} steps, and the run ended: {end}")
        time.sleep(0.05)
    raise AssertionError(f"{metrics} has no {steps} steps after {program.HANG_S} s")


def main(*probes):
    """Runs the tests of the program's file, which need virtual hosts and what these probe for."""
    take_own_names()
    skip_unless(SITE / "vhosts", *probes)
    program.main()
