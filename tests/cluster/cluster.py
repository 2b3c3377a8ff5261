"""Virtual hosts for the cluster tests, and runs on them. Standard library only."""
import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scenarios"))
import program  # noqa: E402

SITE = program.ROOT / "cluster/virtual-hosts"
PREFIX = "nst"
HOSTS = [f"{PREFIX}{i}" for i in (1, 2, 3, 4)]
SKIPPED = 77


def environment():
    """Hosts of their own, apart from those that a user has up."""
    return dict(os.environ, NEARSTEP_PROGRAM=str(program.PROGRAM), NEARSTEP_VHOSTS=str(scratch()), OMP_NUM_THREADS="1",
                NEARSTEP_VHOSTS_PREFIX=PREFIX, NEARSTEP_VHOSTS_NET="10.78.0", NEARSTEP_TIMEOUT="120")


@functools.cache
def scratch():
    folder = program.PROGRAM.parent / "cluster"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def call(*command, timeout=170):
    """The finished process; its output is text."""
    return subprocess.run([str(word) for word in command], cwd=program.ROOT, env=environment(), text=True,
                          capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL)


def must(*command, timeout=170):
    """The standard output of a command that must succeed."""
    done = call(*command, timeout=timeout)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def vhosts(*arguments):
    return must(SITE / "vhosts", *arguments)


def skip_unless(*probes):
    """Ends the test program aloud where the machine lacks something."""
    for probe in probes:
        done = call(probe, "probe")
        if done.returncode == SKIPPED:
            print(f"[  SKIPPED ] {pathlib.Path(sys.argv[0]).stem}: {done.stderr.strip()} (0 ms)", flush=True)
            sys.exit(SKIPPED)
        if done.returncode != 0:
            raise AssertionError(done.stderr)


class Cluster(program.Scenario):
    """Four virtual hosts, as the site cluster/virtual-hosts has them but with names of their own."""

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
            # The folder itself stays: hosts have it mounted.
            for entry in (scratch() / "disks" / host).iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def settings(self, **keys):
        keys = {"data__train": f'"{self.text}"', **keys}
        return [f"--set={key.replace('__', '.')}={value}" for key, value in keys.items()]

    def mpirun(self, *options, ranks=8, **keys):
        """The finished launch/mpirun."""
        return call("launch/mpirun", "configs/tiny.toml", self.site, "-n", ranks, *options, *self.settings(**keys))

    def train(self, *options, ranks=8, **keys):
        """The summary of a run that must succeed."""
        summary = self.folder / "summary.json"
        done = self.mpirun("--fresh", "--json", summary, *options, ranks=ranks, **keys)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return json.loads(summary.read_text())


def main():
    sys.exit(not unittest.main(exit=False, verbosity=2).result.wasSuccessful())
