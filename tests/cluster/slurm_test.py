"""launch/slurm: a job gets its devices, and resumes after failures with the results of an undisturbed run."""
import contextlib
import importlib.util
import json
import os
import re
import signal
import sys
import time
import unittest

import cluster
import launch_test
import verdict

SCRIPT = launch_test.SCRIPT
STEPS = {"train__steps": 60, "csd__per_rank": 1, "checkpoint__every": 10}


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
        out = cluster.must("launch/slurm", "configs/tiny.toml", self.site, "-n", ranks, *self.settings(**keys),
                           f"--output={self.folder / name}.out", *sbatch_options, "--", *files, *begins)
        job = re.fullmatch(r"Submitted batch job (\d+)\s*", out).group(1)
        self.addCleanup(cluster.call, cluster.SITE / "vhosts", "exec", cluster.HOSTS[0], "scancel", job)
        return job

    def output(self, name):
        path = self.folder / f"{name}.out"
        return path.read_text() if path.exists() else ""

    def state(self, job):
        return re.search(r"JobState=(\S+)", on_head("scontrol", "show", "job", job)).group(1)

    def wait_for(self, job, name, states=("COMPLETED",), seconds=120):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            state = self.state(job)
            if state in states:
                return
            if state in ("FAILED", "CANCELLED", "TIMEOUT"):
                break
            time.sleep(0.2)
        self.fail(f"job {job} is {self.state(job)}:\n{self.output(name)}")

    def state_files(self):
        return sorted(str(path.relative_to(launch_test.DISKS)) for path in launch_test.DISKS.glob("*/*/state/*.state"))


class Slurm(Jobs):
    def lose_host(self, host):
        """Kills everything on the host and reports it as lost, rather than wait for the time-out."""
        for pid in cluster.must("ip", "netns", "pids", host).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        on_head("scontrol", "update", f"NodeName={host}", "State=DOWN", "Reason=test")
        self.addCleanup(cluster.must, cluster.SITE / "vhosts", "exec", host, "slurmd", "-N", host)

    undisturbed = None

    def whole(self):
        """An undisturbed run of the same layout, which is the same for all tests."""
        Slurm.undisturbed = self.undisturbed or self.train(ranks=4, **STEPS)
        return self.undisturbed

    def assert_went_on(self, name, whole, after):
        """Checks that the job restarted after step `after` and ended like the undisturbed run."""
        summary = json.loads((self.folder / f"{name}.json").read_text())
        self.assertGreaterEqual(summary["first_step"], after, self.output(name))
        self.assertEqual(summary["steps"], 60)
        self.assertEqual(summary["masters_xxh3"], whole["masters_xxh3"])
        self.assertEqual(summary["heldout_loss"], whole["heldout_loss"])
        self.assertEqual(summary["losses"], whole["losses"][summary["first_step"] - 1:])

    def test_srun_starts_ranks_with_devices(self):
        whole = self.train(ranks=4, csd__per_rank=1, train__stop_at=3)
        summary = self.folder / "srun.json"
        environment = ["env", "OMP_NUM_THREADS=1", "OMPI_MCA_btl_tcp_if_include=eth0", "OMPI_MCA_btl=tcp,vader,self"]
        on_head(*environment, "srun", "-N2", "-n4", "--ntasks-per-node=2", "--gres=csd:2", "--mpi=pmix",
                cluster.program.PROGRAM, "train", "configs/tiny.toml", "--site", self.site, "--fresh", "--json", summary,
                *self.settings(csd__per_rank=1, train__stop_at=3))
        self.assertEqual(json.loads(summary.read_text())["masters_xxh3"], whole["masters_xxh3"])

    def test_jobs_on_the_same_hosts_get_different_devices(self):
        nodes = "--nodelist=nst1,nst2"
        jobs = {name: self.submit(name, nodes, csd__per_rank=1, train__steps=40, csd__path=json.dumps([f"/mnt/csd{i}/{name}" for i in range(4)]))
                for name in ("one", "two")}
        for name, job in jobs.items():
            self.wait_for(job, name)
        self.assertIn("devices nst1=0-1 nst2=0-1", self.output("one"))
        self.assertIn("devices nst1=2-3 nst2=2-3", self.output("two"))
        for device in range(4):
            disk = launch_test.DISKS / f"nst2/csd{device}"
            names = [str(path.relative_to(disk)) for path in disk.glob("*/*.state")]
            self.assertEqual(names, [f"{'one' if device < 2 else 'two'}/rank-{2 + device % 2}.device-0.state"])
        one, two = (json.loads((self.folder / f"{name}.json").read_text()) for name in jobs)
        self.assertEqual(one["masters_xxh3"], two["masters_xxh3"])

    def test_too_few_devices_are_refused(self):
        arguments = ["launch/slurm", "configs/tiny.toml", self.site, "-n", 4]
        done = cluster.call(*arguments, *self.settings(csd__per_rank=3))
        self.assertEqual(done.returncode, 2)
        self.assertIn("has 4 devices (hosts.devices) and its 2 ranks ask for 6", done.stderr)
        # If the site file does not say, Slurm knows.
        done = cluster.call(*arguments, *self.settings(csd__per_rank=3, hosts__devices=0))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("Requested node configuration is not available", done.stderr)
        # A job with fewer devices than its ranks need.
        name = "short"
        job = self.submit(name, "--gres=csd:1", csd__per_rank=1)
        self.wait_for(job, name, states=("FAILED",))
        self.assertIn("The job has 1 devices on this host (0) and its ranks ask for 2", self.output(name))
        self.assertIn("ExitCode=2:0", on_head("scontrol", "show", "job", job))

    def test_nodes_are_checked_before_ranks_start(self):
        job = self.submit("checked", csd__per_rank=1, train__stop_at=1)
        self.wait_for(job, "checked")
        self.assertRegex(self.output("checked"), r"4 ranks on 2 hosts \(nst\d nst\d\), all checked")
        job = self.submit("cut", csd__per_rank=1, hosts__interface='"eth9"')
        self.wait_for(job, "cut", states=("FAILED",))
        self.assertRegex(self.output("cut"), r"slurm_job: host nst\d: The network interface eth9 \(hosts.interface\) is not up")
        self.assertNotIn("step", self.output("cut"))
        self.assertIn("ExitCode=2:0", on_head("scontrol", "show", "job", job))

    def test_a_killed_rank_is_requeued_and_resumed(self):
        whole = self.whole()
        job = self.submit("killed", **STEPS)
        cluster.wait_for_steps(self.folder / "killed.jsonl", 15)
        launch_test.kill_a_rank_on("nst2")
        self.wait_for(job, "killed")
        self.assertIn(f"start 1 of job {job}", self.output("killed"))
        self.assertIn("back to the queue", self.output("killed"))
        self.assert_went_on("killed", whole, after=15)

    def test_a_lost_node_is_replaced_and_the_job_resumed(self):
        whole = self.whole()
        job = self.submit("lost", "--exclude=nst4", **STEPS)
        # Another job has the first devices of the host that will replace it.
        other = on_head("sbatch", "--nodelist=nst3", "--ntasks=1", "--gres=csd:2", "--output=/dev/null", "--wrap=sleep 600").split()[-1]
        self.addCleanup(on_head, "scancel", other)
        cluster.wait_for_steps(self.folder / "lost.jsonl", 25)
        self.lose_host("nst2")
        self.wait_for(job, "lost")
        self.assertIn(f"start 0 of job {job} on nst[1-2]", self.output("lost"))
        self.assertIn(f"start 1 of job {job} on nst[1,3], devices nst1=0-1 nst3=2-3", self.output("lost"))
        # The state of two ranks was on the lost node's disk, so the run resumes from the newest checkpoint.
        self.assertRegex(self.output("lost"), r"resumed from \S+/step-000000[2-5]0.h5")
        self.assert_went_on("lost", whole, after=21)

    def test_a_job_whose_time_is_nearly_over_commits_and_goes_on(self):
        whole = self.whole()
        job = self.submit("late", **STEPS)
        cluster.wait_for_steps(self.folder / "late.jsonl", 10)
        # The signal that Slurm sends for --signal=USR1@120, without waiting for it.
        on_head("scancel", "--signal=USR1", job)
        self.wait_for(job, "late")
        self.assertIn("stopped on request after step", self.output("late"))
        self.assertIn("this start ended with code 75: back to the queue", self.output("late"))
        self.assert_went_on("late", whole, after=11)
        self.assertRegex(self.output("late"), r"a notice of 120 s leaves time for the step under way")
        self.assertEqual(self.output("late").count("slurm_job: start "), 2)  # and no rank was killed while ending
        self.assertNotIn("failures", on_head("scontrol", "show", "job", job))

    def test_a_longer_notice_reaches_the_ranks(self):
        done = cluster.call("launch/slurm", "configs/tiny.toml", self.site, "-n", 4, "--dry-run", *self.settings(),
                            "--signal=USR1@600")
        self.assertIn("NEARSTEP_NOTICE=600", done.stdout)

    def stubbed(self, program, lines):
        """An sbatch option that makes the job find this stub instead of a program; `real` in it is the program
        itself."""
        stub = self.folder / "bin" / program
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/bin/bash\nreal={cluster.shutil.which(program)}\n{lines}\nexec $real \"$@\"\n")
        stub.chmod(0o755)
        return f"--export=ALL,PATH={stub.parent}:{os.environ['PATH']}"

    def test_a_refused_requeue_does_not_end_in_0(self):
        job = self.submit("refused", self.stubbed("scontrol", "[[ $1 != requeue ]] || { echo 'Requeue is off' >&2; exit 1; }"), **STEPS)
        cluster.wait_for_steps(self.folder / "refused.jsonl", 5)
        on_head("scancel", "--signal=USR1", job)
        self.wait_for(job, "refused", states=("FAILED",))
        self.assertIn("Slurm does not take the job back", self.output("refused"))
        self.assertIn("ExitCode=75:0", on_head("scontrol", "show", "job", job))

    def test_failures_are_tried_again_and_counted(self):
        fault = "rank=1 phase=mid_write count=1 action=fail"
        os.environ.update(NEARSTEP_FAULT=fault, NEARSTEP_MOST_FAILURES="1")
        try:
            job = self.submit("failing", **STEPS)
        finally:
            del os.environ["NEARSTEP_FAULT"], os.environ["NEARSTEP_MOST_FAILURES"]
        self.wait_for(job, "failing", states=("FAILED",))
        self.assertIn(f"start 1 of job {job}", self.output("failing"))
        self.assertIn("the job failed 2 times, the last time with code 1", self.output("failing"))
        self.assertIn("ExitCode=1:0", on_head("scontrol", "show", "job", job))

    def test_a_cancelled_job_stays_cancelled(self):
        job = self.submit("cancelled", **STEPS)
        cluster.wait_for_steps(self.folder / "cancelled.jsonl", 5)
        on_head("scancel", job)
        self.wait_for(job, "cancelled", states=("CANCELLED",))
        time.sleep(8)
        self.assertEqual(self.state(job), "CANCELLED")
        self.assertNotIn("start 1", self.output("cancelled"))

    def test_a_job_from_a_checkpoint_goes_on_from_its_own_newest_step(self):
        self.train(ranks=4, **{**STEPS, "train__stop_at": 10}, checkpoint__path=f'"{self.folder}/origin"')
        whole = self.whole()
        job = self.submit("branch", begins=["--from", self.folder / "origin/step-00000010.h5"], **STEPS)
        cluster.wait_for_steps(self.folder / "branch.jsonl", 10)
        on_head("scancel", "--signal=USR1", job)
        self.wait_for(job, "branch")
        self.assertIn(f"start 1 of job {job}", self.output("branch"))
        self.assert_went_on("branch", whole, after=20)

    def test_storage_hosts_are_a_part_of_the_job_that_has_all_devices(self):
        whole = self.whole()
        stored = {**STEPS, "hosts__names": '["nst1","nst2"]', "hosts__storage": '["nst3"]', "csd__per_rank": 2}
        job = self.submit("stored", "--time=20", ":", "--time=20", ranks=5, **stored)
        cluster.wait_for_steps(self.folder / "stored.jsonl", 12)
        on_head("scancel", "--signal=USR1", job)
        self.wait_for(job, "stored")
        said = self.output("stored")
        self.assertRegex(said, rf"start 1 of job {job} on \S+, devices (nst\d=none ){{2}}nst\d=0-1")
        self.assertRegex(said, r"5 ranks on 3 hosts \((nst\d ?){3}\), all checked")
        self.assert_went_on("stored", whole, after=10)
        self.assertRegex("\n".join(self.state_files()), r"^nst\d/csd0/state/rank-4.device-0.state\nnst\d/csd1/state/rank-4.device-1.state$")

    def test_a_storage_host_without_devices_is_refused(self):
        stored = {**STEPS, "hosts__names": '["nst1"]', "hosts__storage": '["nst2"]', "csd__per_rank": "[1,1,1]"}
        job = self.submit("mixed", "--gres=csd:2", ":", "--gres=none", ranks=3, **stored)
        self.wait_for(job, "mixed", states=("FAILED",))
        self.assertIn("The job has 0 devices on this host (none) and its ranks ask for 1", self.output("mixed"))
        done = cluster.call("launch/slurm", "configs/tiny.toml", self.site, "-n", 2, *self.settings(), ":", "--time=5")
        self.assertEqual(done.returncode, 2)
        self.assertIn("options behind : are for storage hosts", done.stderr)

    @unittest.skipIf(importlib.util.find_spec("nearstep") is None, "this Python has no nearstep: launch/setup installs it")
    def test_a_script_has_ranks_that_serve_on_storage_hosts(self):
        cluster.must("launch/ranks", 2, sys.executable, SCRIPT, self.folder / "alone", self.folder / "state")
        site = self.site / "site.toml"
        text = re.sub(r"(?m)^names = .*", 'names = ["nst1", "nst2"]\nstorage = ["nst3"]', site.read_text())
        site.write_text(re.sub(r"(?m)^ranks = 2", "ranks = 1", text))
        out = cluster.must("env", f"NEARSTEP_PYTHON={sys.executable}", "launch/slurm", SCRIPT, self.site, f"--output={self.folder}/script.out",
                           "--", self.folder / "slurm", *(f"/mnt/csd{i}/state" for i in range(4)))
        job = out.split()[-1]
        self.addCleanup(cluster.call, cluster.SITE / "vhosts", "exec", cluster.HOSTS[0], "scancel", job)
        cluster.wait_for_steps(self.folder / "slurm/steps-0", 5)
        on_head("scancel", "--signal=USR1", job)
        self.wait_for(job, "script")
        self.assertIn("this start ended with code 75: back to the queue", self.output("script"))
        self.assertRegex(self.output("script"), r"3 ranks on 3 hosts \((nst\d ?){3}\), all checked")
        self.assertEqual((self.folder / "slurm/digest").read_text(), (self.folder / "alone/digest").read_text())
        self.assertRegex("\n".join(self.state_files()), r"^nst\d/csd0/state/rank-2.device-0.state\nnst\d/csd1/state/rank-2.device-1.state$")

    @unittest.skipIf(importlib.util.find_spec("nearstep") is None, "this Python has no nearstep: launch/setup installs it")
    def test_a_script_goes_on_after_a_notice_with_the_result_of_one_machine(self):
        cluster.must("launch/ranks", 2, sys.executable, SCRIPT, self.folder / "alone", *(self.folder / f"state{i}" for i in range(4)))
        site = self.site / "site.toml"
        site.write_text(site.read_text().replace("ranks = 2", "ranks = 1"))
        out = cluster.must("env", f"NEARSTEP_PYTHON={sys.executable}", "launch/slurm", SCRIPT, self.site, "-n", 2, f"--output={self.folder}/script.out",
                           "--", self.folder / "slurm", *(f"/mnt/csd{i}/state" for i in range(4)))
        job = out.split()[-1]
        self.addCleanup(cluster.call, cluster.SITE / "vhosts", "exec", cluster.HOSTS[0], "scancel", job)
        cluster.wait_for_steps(self.folder / "slurm/steps-0", 5)
        on_head("scancel", "--signal=USR1", job)
        self.wait_for(job, "script")
        said = self.output("script")
        self.assertRegex(said, rf"start 1 of job {job} on nst\[1-2\], devices nst1=0-1 nst2=0-1")
        self.assertIn("this start ended with code 75: back to the queue", said)
        self.assertNotIn("failures", on_head("scontrol", "show", "job", job))
        starts = [tuple(map(int, line.split())) for line in (self.folder / "slurm/starts").read_text().splitlines()]
        self.assertEqual([(rank, ranks) for rank, ranks, _ in sorted(starts)], [(0, 2), (0, 2), (1, 2), (1, 2)])
        self.assertGreaterEqual(max(step for _, _, step in starts), 3)
        self.assertEqual((self.folder / "slurm/digest").read_text(), (self.folder / "alone/digest").read_text())
        self.assertEqual(self.state_files(), [f"nst{rank + 1}/csd{device}/state/rank-{rank}.device-{device}.state" for rank in (0, 1) for device in (0, 1)])


class Cores:
    """Of jobs on nodes that have this machine's cores."""

    @unittest.skipIf((os.cpu_count() or 1) < 2, "one core cannot be shared out")
    @unittest.skipIf(importlib.util.find_spec("nearstep") is None, "this Python has no nearstep: launch/setup installs it")
    def test_each_rank_has_the_cores_that_the_site_gives_it(self):
        script = self.folder / "cores.py"
        script.write_text("import os\nprint('cores', len(os.sched_getaffinity(0)), 'threads', os.environ['OMP_NUM_THREADS'], flush=True)\n")
        site = self.site / "site.toml"
        for cores, ranks in ((2, 1), (1, 2)):
            site.write_text(re.sub(r"(?m)^(cores_per_rank = .*\n)?ranks = .*", f"cores_per_rank = {cores}\nranks = {ranks}", site.read_text()))
            name = f"cores-{cores}"
            out = cluster.must("env", "-u", "OMP_NUM_THREADS", f"NEARSTEP_PYTHON={sys.executable}", "launch/slurm", script, self.site, "-n", 2,
                               f"--output={self.folder}/{name}.out")
            self.wait_for(out.split()[-1], name)
            self.assertEqual(re.findall(r"cores (\d+) threads (\d+)", self.output(name)), [(str(cores), str(cores))] * 2)


class ControlGroups(Cores, Jobs):
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


class Sessions(Cores, Jobs):
    """Steps and shells without launch/slurm, on nodes whose devices have types and whose tasks are bound to cores."""

    KIND = ("affinity",)
    ENVIRONMENT = ("env", "OMP_NUM_THREADS=1", "OMPI_MCA_btl_tcp_if_include=eth0")

    def srun(self, *words):
        """What a step on the first host says, with its exit code."""
        on_host = [cluster.SITE / "vhosts", "exec", cluster.HOSTS[0], *self.ENVIRONMENT]
        return cluster.call(*on_host, "srun", "-N1", "--nodelist=nst1", *words)

    def trained(self, *options, steps=2, **keys):
        return ["train", "configs/tiny.toml", "--site", self.site, "--fresh", *options,
                *self.settings(csd__per_rank=1, train__stop_at=steps, **keys)]

    def test_devices_with_types_are_found(self):
        job = self.submit("typed", "--nodelist=nst1", "--gres=csd:sata:2", ranks=2, csd__per_rank=1, train__stop_at=1)
        self.wait_for(job, "typed")
        self.assertIn("devices nst1=2-3", self.output("typed"))
        self.assertEqual(self.state_files(), [f"nst1/csd{2 + rank}/state/rank-{rank}.device-0.state" for rank in (0, 1)])

    def test_a_step_finds_the_devices_of_its_job(self):
        done = self.srun("-n2", "--gres=csd:sata:2", "--mpi=pmix", cluster.program.PROGRAM, *self.trained())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.state_files(), [f"nst1/csd{2 + rank}/state/rank-{rank}.device-0.state" for rank in (0, 1)])

    @unittest.skipIf(importlib.util.find_spec("nearstep") is None, "this Python has no nearstep: launch/setup installs it")
    def test_a_step_of_a_script_finds_the_devices_of_its_job(self):
        done = self.srun("-n2", "--gres=csd:sata:2", "--mpi=pmix", sys.executable, SCRIPT, self.folder / "out",
                         *(f"/mnt/csd{i}/state" for i in range(4)))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.state_files(), [f"nst1/csd{2 + rank}/state/rank-{rank}.device-0.state" for rank in (0, 1)])

    def test_a_job_without_devices_is_refused(self):
        done = self.srun("-n1", "--mpi=pmix", cluster.program.PROGRAM, *self.trained())
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("nearstep: Slurm gave this job no numbered devices on nst1: ask for them with --gres=csd:N", done.stderr)
        self.assertEqual(self.state_files(), [])

    def test_tasks_that_cannot_find_each_other_are_refused(self):
        for pmi in ("pmi2", "none"):
            done = self.srun("-n2", f"--mpi={pmi}", cluster.program.PROGRAM, "doctor")
            if pmi == "pmi2" and done.returncode == 0:
                continue  # this Open MPI knows it
            said = [line for line in done.stderr.splitlines() if line.startswith("nearstep")]
            self.assertEqual(len(said), 1, done.stderr)
            self.assertRegex(said[0], "^nearstep: srun has started 2 tasks without a PMI that this MPI knows")

    def test_single_processes_run_in_any_allocation(self):
        doctor = f"{cluster.program.PROGRAM} doctor >/dev/null"
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
            done = cluster.call("env", *variables, "launch/slurm", "configs/tiny.toml", self.site, "-n", 2, *self.settings(), word)
            self.assertEqual(done.returncode, 2, done.stdout)
            self.assertIn("the tasks of an array", done.stderr)


if __name__ == "__main__":
    cluster.skip_unless(cluster.SITE / "vhosts", cluster.SITE / "slurm")
    cluster.main()
