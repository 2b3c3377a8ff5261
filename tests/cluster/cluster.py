"""Virtual hosts for the cluster tests, and runs on them. Standard library only."""
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scenarios"))
import program  # noqa: E402
import verdict  # noqa: E402

SITE = program.ROOT / "cluster/virtual-hosts"
PREFIX = "nst"
HOSTS = [f"{PREFIX}{i}" for i in (1, 2, 3, 4)]


def environment():
    """Uses separate hosts from those that a user has started."""
    return dict(os.environ, NEARSTEP_PROGRAM=str(program.PROGRAM), NEARSTEP_VHOSTS=str(scratch()), OMP_NUM_THREADS="1",
                NEARSTEP_VHOSTS_PREFIX=PREFIX, NEARSTEP_VHOSTS_NET="10.78.0", NEARSTEP_TIMEOUT=str(program.HANG_S))


@functools.cache
def scratch():
    folder = program.PROGRAM.parent / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def call(*command, timeout=program.HANG_S):
    """Runs a command; returns the finished process, with output as text."""
    return subprocess.run([str(word) for word in command], cwd=program.ROOT, env=environment(), text=True,
                          capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL)


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
    """Four virtual hosts like those of the site cluster/virtual-hosts, with their own names."""

    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup(call, SITE / "vhosts", "down")
        vhosts("up", len(HOSTS))

    def setUp(self):
        super().setUp()
        self.site = self.folder / "site"
        self.site.mkdir()
        text = (SITE / "site.toml").read_text().replace('"nsh', f'"{PREFIX}')
        (self.site / "site.toml").write_text(text.replace("runs/virtual-hosts", str(self.folder)))
        for host in HOSTS:
            # The folder itself stays, because hosts have mounted it.
            for entry in (scratch() / "disks" / host).iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def settings(self, **keys):
        keys = {"data__train": f'"{self.text}"', **keys}
        return [f"--set={key.replace('__', '.')}={value}" for key, value in keys.items()]

    def mpirun(self, *options, ranks=8, **keys):
        """Runs launch/mpirun; returns the finished process."""
        return call("launch/mpirun", "configs/tiny.toml", self.site, "-n", ranks, *options, *self.settings(**keys))

    def train(self, *options, ranks=8, **keys):
        """Runs a training that must succeed; returns its summary."""
        summary = self.folder / "summary.json"
        done = self.mpirun("--fresh", "--json", summary, *options, ranks=ranks, **keys)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return json.loads(summary.read_text())


main = program.main
