"""Jobs of launch/slurm in a private Slurm on virtual hosts."""

import importlib.util
import os
import re
import sys
import time
import unittest

import cluster

ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
STEPS = {"train__steps": 60, "csd__per_rank": 1, "checkpoint__every": 10}
# Jobs note there what they have begun, under their number, which is that of another Slurm's job as well.
os.environ["XDG_STATE_HOME"] = str(cluster.scratch() / "records")


with_package = unittest.skipIf(
    importlib.util.find_spec("nearstep") is None, "this Python has no nearstep: launch/setup installs it"
)


def on_head(*command):
    return cluster.must(cluster.SITE / "vhosts", "exec", cluster.HOSTS[0], *command)


class Jobs(cluster.Cluster):
    KIND = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cluster.must(cluster.SITE / "slurm", "up", *cls.KIND)

    def submit(self, name, *sbatch_options, ranks=4, begins=("--fresh",), **keys):
        """Submits a job and returns its number. Its files are NAME.out, NAME.json and NAME.jsonl. begins: options of
        its first start."""
        keys = {"checkpoint__path": f'"{self.folder / name}"', **keys}
        files = ["--json", self.folder / f"{name}.json", "--metrics", self.folder / f"{name}.jsonl"]
        out = cluster.must(
            "launch/slurm",
            "configs/tiny.toml",
            self.site,
            "-n",
            ranks,
            *self.settings(**keys),
            f"--output={self.folder / name}.out",
            *sbatch_options,
            "--",
            *files,
            *begins,
        )
        return self.submitted(out)

    def submit_script(self, name, script, *options, arguments=(), python=sys.executable, environment=()):
        """Like submit(), of a script; its output is in NAME.out."""
        out = cluster.must(
            "env",
            *environment,
            f"NEARSTEP_PYTHON={python}",
            "launch/slurm",
            script,
            self.site,
            *options,
            f"--output={self.folder / name}.out",
            "--",
            *arguments,
        )
        return self.submitted(out)

    def quick_python(self, python=sys.executable):
        """A Python that need not read nearstep and PyTorch when it is asked about them."""
        return cluster.program.make_script(
            self.folder / "python", f'[[ "$*" != "-m nearstep digest" ]] || exec echo 0\nexec {python} "$@"'
        )

    def submitted(self, said):
        job = re.fullmatch(r"Submitted batch job (\d+)\s*", said).group(1)
        self.addCleanup(cluster.call, cluster.SITE / "vhosts", "exec", cluster.HOSTS[0], "scancel", job)
        return job

    def output(self, name):
        path = self.folder / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def state(self, job):
        return re.search(r"JobState=(\S+)", on_head("scontrol", "show", "job", job)).group(1)

    def wait_for(self, job, name, states=("COMPLETED",)):
        end = time.monotonic() + cluster.program.HANG_S
        while time.monotonic() < end:
            state = self.state(job)
            if state in states:
                return
            if state in ENDS:
                break
            time.sleep(0.5)
        self.fail(f"job {job} is {self.state(job)}:\n{self.output(name)}")

    def wait_for_steps(self, job, name, steps, file=None):
        """Waits until the job has taken that many steps, which its metrics or the file show."""

        def end_of():
            state = self.state(job)
            return f"{state}\n{self.output(name)}" if state in ENDS else None

        cluster.wait_for_steps(file or self.folder / f"{name}.jsonl", steps, end_of)

    def state_files(self):
        return sorted(str(path.relative_to(cluster.DISKS)) for path in cluster.DISKS.glob("*/*/state/*.state"))


def main():
    cluster.main(cluster.SITE / "slurm")
