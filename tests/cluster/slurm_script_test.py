"""launch/slurm with a script: it goes on after a notice, also with storage hosts, and ends as on one machine."""

import functools
import os
import pathlib
import re
import shutil
import sys
import tempfile

import cluster
import forked
import program
import programs
import slurm_jobs


class Scripts(slurm_jobs.Jobs):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.python = sys.executable
        if start_fork := programs.find("start_fork"):
            loaded = forked.Loaded(
                "python", sys.executable, "torch", "torch._dynamo", environment=cluster.environment()
            )
            cls.addClassCleanup(loaded.close)
            cls.python = program.make_script(
                cluster.scratch() / "python",
                f'NEARSTEP_FORKS={loaded.environment["NEARSTEP_FORKS"]} exec {start_fork} "$@"',
            )

    @classmethod
    @functools.cache
    def digest_of_one_machine(cls):
        with tempfile.TemporaryDirectory(dir=cluster.scratch()) as folder:
            cluster.must(
                "launch/ranks", 2, cls.python, cluster.SCRIPT, folder, *(f"{folder}/state{i}" for i in range(4))
            )
            return pathlib.Path(folder, "digest").read_text()

    def check_notice(self, *options, python, environment=()):
        """Runs the script, stopped by a notice after some steps, on the site; returns the job and what it said."""
        job = self.submit_script(
            "script",
            cluster.SCRIPT,
            *options,
            python=python,
            environment=environment,
            arguments=[self.folder / "slurm", *(f"/mnt/csd{i}/state" for i in range(4))],
        )
        self.wait_for_steps(job, "script", 5, self.folder / "slurm/steps-0")
        slurm_jobs.on_head("scancel", "--signal=USR1", job)
        wanted = self.digest_of_one_machine()  # while Slurm starts the job again
        self.wait_for(job, "script")
        self.assert_states(self.output("script"), "code 75")
        self.assertEqual((self.folder / "slurm/digest").read_text(), wanted)
        return job, self.output("script")

    @slurm_jobs.with_package
    def test_a_script_has_ranks_that_serve_on_storage_hosts(self):
        site = self.site / "site.toml"
        text = re.sub(r"(?m)^names = .*", 'names = ["nst1", "nst2"]\nstorage = ["nst3"]', site.read_text())
        site.write_text(re.sub(r"(?m)^ranks = 2", "ranks = 1", text))
        # Slurm's own sometimes waits for ever, too, at any start.
        srun = program.make_script(
            self.folder / "bin/srun",
            f"""{shutil.which("srun")} "$@"
code=$?
[[ $SLURM_RESTART_COUNT || "$*" != *pmix* ]] || exec sleep 1000
exit "$code\"""",
        )
        _, said = self.check_notice(
            python=self.quick_python(self.python), environment=[f"PATH={srun.parent}:{os.environ['PATH']}"]
        )
        self.assertIn(
            "all ranks have ended, but srun does not, so it is ended\nslurm_job: this start ended with code 75", said
        )
        self.assertRegex(said, r"3 ranks on 3 hosts \((nst\d ?){3}\)")
        self.assertRegex(
            "\n".join(self.state_files()),
            r"^nst\d/csd0/state/rank-2.device-0.state\nnst\d/csd1/state/rank-2.device-1.state$",
        )

    @slurm_jobs.with_package
    def test_a_script_goes_on_after_a_notice_with_the_result_of_one_machine(self):
        site = self.site / "site.toml"
        site.write_text(site.read_text().replace("ranks = 2", "ranks = 1"))
        job, said = self.check_notice("-n", 2, python=self.python)
        self.assertRegex(said, rf"start 1 of job {job} on nst\[1-2\], devices nst1=0-1 nst2=0-1")
        self.assertNotIn("failures", slurm_jobs.on_head("scontrol", "show", "job", job))
        starts = [tuple(map(int, line.split())) for line in (self.folder / "slurm/starts").read_text().splitlines()]
        self.assertEqual([(rank, ranks) for rank, ranks, _ in sorted(starts)], [(0, 2), (0, 2), (1, 2), (1, 2)])
        self.assertGreaterEqual(max(step for _, _, step in starts), 3)
        self.assertEqual(
            self.state_files(),
            [
                f"nst{rank + 1}/csd{device}/state/rank-{rank}.device-{device}.state"
                for rank in (0, 1)
                for device in (0, 1)
            ],
        )


if __name__ == "__main__":
    slurm_jobs.main()
