"""launch/slurm and srun: a job gets its devices and cores, and a sentence if it has too few."""

import json
import os
import re
import shlex
import sys
import unittest

import cluster
import slurm_jobs
import verdict
from slurm_jobs import STEPS, on_head


class Slurm(slurm_jobs.Jobs):
    def test_srun_starts_ranks_with_devices(self):
        whole = self.train(ranks=4, csd__per_rank=1, train__stop_at=3)
        summary = self.folder / "srun.json"
        environment = ["env", "OMP_NUM_THREADS=1", "OMPI_MCA_btl_tcp_if_include=eth0", "OMPI_MCA_btl=tcp,vader,self"]
        on_head(
            *environment,
            "srun",
            "-N2",
            "-n4",
            "--ntasks-per-node=2",
            "--gres=csd:2",
            "--mpi=pmix",
            cluster.program.PROGRAM,
            "train",
            "configs/tiny.toml",
            "--site",
            self.site,
            "--fresh",
            "--json",
            summary,
            *self.settings(csd__per_rank=1, train__stop_at=3),
        )
        self.assertEqual(json.loads(summary.read_text())["masters_xxh3"], whole["masters_xxh3"])

    def test_jobs_on_the_same_hosts_get_different_devices(self):
        nodes = "--nodelist=nst1,nst2"
        jobs = {
            name: self.submit(
                name,
                nodes,
                csd__per_rank=1,
                train__steps=40,
                csd__path=json.dumps([f"/mnt/csd{i}/{name}" for i in range(4)]),
            )
            for name in ("one", "two")
        }
        for name, job in jobs.items():
            self.wait_for(job, name)
        self.assertIn("devices nst1=0-1 nst2=0-1", self.output("one"))
        self.assertIn("devices nst1=2-3 nst2=2-3", self.output("two"))
        for device in range(4):
            disk = cluster.DISKS / f"nst2/csd{device}"
            names = [str(path.relative_to(disk)) for path in disk.glob("*/*.state")]
            self.assertEqual(names, [f"{'one' if device < 2 else 'two'}/rank-{2 + device % 2}.device-0.state"])
        one, two = (json.loads((self.folder / f"{name}.json").read_text()) for name in jobs)
        self.assertEqual(one["masters_xxh3"], two["masters_xxh3"])

    def test_too_few_devices_are_refused(self):
        arguments = ["launch/slurm", "configs/tiny.toml", self.site, "-n", 4]
        done = cluster.call(*arguments, *self.settings(csd__per_rank=3))
        self.assertEqual(done.returncode, 2)
        self.assert_states(done.stderr, "4 devices", "hosts.devices", "2 ranks", 6)
        # If the site file does not say, Slurm knows.
        done = cluster.call(*arguments, *self.settings(csd__per_rank=3, hosts__devices=0))
        self.assertNotEqual(done.returncode, 0)
        # A job with fewer devices than its ranks need.
        name = "short"
        job = self.submit(name, "--gres=csd:1", csd__per_rank=1)
        self.wait_for(job, name, states=("FAILED",))
        self.assert_states(self.output(name), "1 devices", "(0)", 2)
        self.assertIn("ExitCode=2:0", on_head("scontrol", "show", "job", job))

    def test_nodes_are_checked_before_ranks_start(self):
        self.start_no_forks()  # which are found by the environment
        job = self.submit("checked", "--export=NONE", csd__per_rank=1, train__stop_at=1)
        self.wait_for(job, "checked")
        self.assertRegex(self.output("checked"), r"4 ranks on 2 hosts \(nst\d nst\d\)")
        job = self.submit("cut", csd__per_rank=1, hosts__interface='"eth9"')
        self.wait_for(job, "cut", states=("FAILED",))
        self.assertRegex(self.output("cut"), r"slurm_job: host nst\d: .* eth9 \(hosts.interface\)")
        self.assertNotIn("step", self.output("cut"))
        self.assertIn("ExitCode=2:0", on_head("scontrol", "show", "job", job))

    def test_a_longer_notice_reaches_the_ranks(self):
        done = cluster.call(
            "launch/slurm", "configs/tiny.toml", self.site, "-n", 4, "--dry-run", *self.settings(), "--signal=USR1@600"
        )
        self.assertIn("NEARSTEP_NOTICE=600", done.stdout)

    def test_a_storage_host_without_devices_is_refused(self):
        stored = {**STEPS, "hosts__names": '["nst1"]', "hosts__storage": '["nst2"]', "csd__per_rank": "[1,1,1]"}
        job = self.submit("mixed", "--gres=csd:2", ":", "--gres=none", ranks=3, **stored)
        self.wait_for(job, "mixed", states=("FAILED",))
        self.assert_states(self.output("mixed"), "0 devices", "(none)", 1)
        done = cluster.call("launch/slurm", "configs/tiny.toml", self.site, "-n", 2, *self.settings(), ":", "--time=5")
        self.assertEqual(done.returncode, 2)
        self.assert_states(done.stderr, "storage", ":")


class Cores:
    """Tests the cores of jobs, on nodes that have this machine's."""

    @unittest.skipIf((os.cpu_count() or 1) < 2, "one core cannot be shared out")
    @slurm_jobs.with_package
    def test_each_rank_has_the_cores_that_the_site_gives_it(self):
        self.start_no_forks()
        script = self.folder / "cores.py"
        # Each rank writes a file: srun may lose the last words of a rank that ends at once.
        script.write_text(
            "import os, pathlib, sys\n"
            "rank = pathlib.Path(sys.argv[0]).with_name('rank-' + os.environ['SLURM_PROCID'])\n"
            "rank.write_text(f\"{len(os.sched_getaffinity(0))} {os.environ['OMP_NUM_THREADS']}\")\n"
        )
        site = self.site / "site.toml"
        for cores, ranks in ((2, 1), (1, 2)):
            site.write_text(
                re.sub(
                    r"(?m)^(cores_per_rank = .*\n)?ranks = .*",
                    f"cores_per_rank = {cores}\nranks = {ranks}",
                    site.read_text(),
                )
            )
            name = f"cores-{cores}"
            job = self.submit_script(
                name,
                script,
                "-n",
                2,
                "--export=NONE",
                python=self.quick_python(),
                environment=["-u", "OMP_NUM_THREADS"],
            )
            self.wait_for(job, name)
            of_ranks = [self.folder / f"rank-{rank}" for rank in range(2)]
            self.assertEqual([path.read_text() for path in of_ranks], [f"{cores} {cores}"] * 2)
            for path in of_ranks:
                path.unlink()


class ControlGroups(Cores, slurm_jobs.Jobs):
    """Control groups hold a step to its cores."""

    KIND = ("cgroup",)

    @classmethod
    def setUpClass(cls):
        probe = cluster.call(cluster.SITE / "slurm", "probe", *cls.KIND)
        if probe.returncode == verdict.SKIPPED:
            raise unittest.SkipTest(probe.stderr.strip())
        super().setUpClass()

    def test_a_step_is_in_a_group_of_its_job(self):
        said = on_head("srun", "-n1", "--mpi=none", "grep", "cpuset", "/proc/self/cgroup")
        self.assertRegex(said, r"cpuset:\S*/slurm_nst\d/uid_\d+/job_\d+/step_\d+")


class Sessions(Cores, slurm_jobs.Jobs):
    """Steps and shells without launch/slurm, on nodes whose devices have types and whose tasks are bound to cores."""

    KIND = ("affinity",)
    ENVIRONMENT = ("env", "OMP_NUM_THREADS=1", "OMPI_MCA_btl_tcp_if_include=eth0")

    def srun(self, *words):
        """Runs a step on the first host. Returns its exit code and what it printed."""
        on_host = [cluster.SITE / "vhosts", "exec", cluster.HOSTS[0], *self.ENVIRONMENT]
        return cluster.call(*on_host, "srun", "-N1", "--nodelist=nst1", *words)

    def trained(self, *options, steps=2, **keys):
        return [
            "train",
            "configs/tiny.toml",
            "--site",
            self.site,
            "--fresh",
            *options,
            *self.settings(csd__per_rank=1, train__stop_at=steps, **keys),
        ]

    def test_devices_with_types_are_found(self):
        job = self.submit("typed", "--nodelist=nst1", "--gres=csd:sata:2", ranks=2, csd__per_rank=1, train__stop_at=1)
        self.wait_for(job, "typed")
        self.assertIn("devices nst1=2-3", self.output("typed"))
        self.assertEqual(
            self.state_files(), [f"nst1/csd{2 + rank}/state/rank-{rank}.device-0.state" for rank in (0, 1)]
        )

    def test_a_step_finds_the_devices_of_its_job(self):
        done = self.srun("-n2", "--gres=csd:sata:2", "--mpi=pmix", cluster.program.PROGRAM_FORKED, *self.trained())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(
            self.state_files(), [f"nst1/csd{2 + rank}/state/rank-{rank}.device-0.state" for rank in (0, 1)]
        )

    def test_tasks_of_an_array_have_devices_of_their_own(self):
        """The last task's job has the number of the array. Both tasks hold their devices at the same time."""
        own = {
            "csd__path": json.dumps([f"/mnt/csd{i}/task-TASK" for i in range(4)]),
            "checkpoint__path": f'"{self.folder}/TASK"',
        }
        step = shlex.join(
            map(str, [*self.ENVIRONMENT, "srun", "--mpi=pmix", cluster.program.PROGRAM_FORKED, *self.trained(**own)])
        )
        step = step.replace("TASK", "'$SLURM_ARRAY_TASK_ID'")
        both = (
            f"touch {self.folder}/begun-$SLURM_ARRAY_TASK_ID; until [ -e {self.folder}/begun-1 ] && [ -e "
            f"{self.folder}/begun-2 ]; do sleep 0.1; done"
        )
        job = on_head(
            "sbatch",
            "--array=1-2",
            "-n1",
            "--nodelist=nst1",
            "--gres=csd:1",
            f"--output={self.folder}/array-%a.out",
            f"--wrap={both}; {step}",
        ).split()[-1]
        self.addCleanup(on_head, "scancel", job)
        for task in (1, 2):
            self.wait_for(f"{job}_{task}", f"array-{task}")
        drives = sorted(path.parents[1].name for path in cluster.DISKS.glob("nst1/*/task-*/*.state"))
        self.assertEqual(drives, ["csd0", "csd1"])

    @slurm_jobs.with_package
    def test_a_step_of_a_script_finds_the_devices_of_its_job(self):
        done = self.srun(
            "-n2",
            "--gres=csd:sata:2",
            "--mpi=pmix",
            sys.executable,
            cluster.SCRIPT,
            self.folder / "out",
            *(f"/mnt/csd{i}/state" for i in range(4)),
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(
            self.state_files(), [f"nst1/csd{2 + rank}/state/rank-{rank}.device-0.state" for rank in (0, 1)]
        )

    def test_a_job_without_devices_is_refused(self):
        done = self.srun("-n1", "--mpi=pmix", cluster.program.PROGRAM_FORKED, *self.trained())
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assert_states(done.stderr, "Slurm", "nst1", "--gres=csd:N")
        self.assertEqual(self.state_files(), [])

    def test_tasks_that_cannot_find_each_other_are_refused(self):
        for pmi in ("pmi2", "none"):
            done = self.srun("-n2", f"--mpi={pmi}", cluster.program.PROGRAM_FORKED, "doctor")
            if pmi == "pmi2" and done.returncode == 0:
                continue  # this Open MPI knows it
            said = [line for line in done.stderr.splitlines() if line.startswith("nearstep")]
            self.assertEqual(len(said), 1, done.stderr)
            self.assert_states(said[0], "srun", "2 tasks", "PMI")

    def test_single_processes_run_in_any_allocation(self):
        doctor = f"{cluster.program.PROGRAM_FORKED} doctor >/dev/null"
        on_host = [cluster.SITE / "vhosts", "exec", "nst1", *self.ENVIRONMENT]
        for pmi in ("pmix", "pmi2", "none"):
            for options in (f"-n1 --mpi={pmi}", f"-n1 --mpi={pmi} --pty", f"-n2 --mpi={pmi} --pty"):
                line = f"srun -N1 {options} bash -c '{doctor} && {doctor} && echo both'"
                done = cluster.call(*on_host, "script", "-qec", line, "/dev/null")
                self.assertIn("both", done.stdout, f"{options}: {done.stdout}{done.stderr}")
        done = cluster.call(*on_host, "salloc", "-N1", "bash", "-c", f"{doctor} && echo one")
        self.assertIn("one", done.stdout, done.stderr)

    def test_arrays_are_refused(self):
        for word, variables in (("--array=1-2", ()), ("-a1-2", ()), ("--time=5", ("SBATCH_ARRAY_INX=1-2",))):
            done = cluster.call(
                "env", *variables, "launch/slurm", "configs/tiny.toml", self.site, "-n", 2, *self.settings(), word
            )
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assert_states(done.stderr, "array")

    def test_a_job_in_another_folder_is_refused(self):
        for word in ("--chdir=/tmp", "-D/tmp"):
            done = cluster.call("launch/slurm", "configs/tiny.toml", self.site, "-n", 2, *self.settings(), word)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assert_states(done.stderr, word)


if __name__ == "__main__":
    slurm_jobs.main()
