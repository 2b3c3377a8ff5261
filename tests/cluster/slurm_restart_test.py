"""launch/slurm: a job resumes after failures with the results of an undisturbed run."""

import contextlib
import json
import os
import re
import signal
import time

import cluster
import slurm_jobs
from slurm_jobs import STEPS, on_head


class Restarts(slurm_jobs.Jobs):
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
        Restarts.undisturbed = self.undisturbed or self.train(ranks=4, **STEPS)
        return self.undisturbed

    def assert_went_on(self, name, whole, after):
        """Checks that the job restarted after step `after` and ended like the undisturbed run."""
        summary = json.loads((self.folder / f"{name}.json").read_text())
        self.assertGreaterEqual(summary["first_step"], after, self.output(name))
        self.assertEqual(summary["steps"], 60)
        self.assertEqual(summary["masters_xxh3"], whole["masters_xxh3"])
        self.assertEqual(summary["heldout_loss"], whole["heldout_loss"])
        self.assertEqual(summary["losses"], whole["losses"][summary["first_step"] - 1 :])

    def stubbed(self, program, lines):
        """An sbatch option that makes the job find this stub instead of a program; `real` in it is the program
        itself."""
        stub = cluster.program.make_script(
            self.folder / "bin" / program, f'real={cluster.shutil.which(program)}\n{lines}\nexec $real "$@"'
        )
        return f"--export=ALL,PATH={stub.parent}:{os.environ['PATH']}"

    def test_a_job_from_a_checkpoint_whose_rank_is_killed_goes_on_from_its_own_newest_step(self):
        self.train(ranks=4, **{**STEPS, "train__stop_at": 10}, checkpoint__path=f'"{self.folder}/origin"')
        whole = self.whole()
        job = self.submit("killed", begins=["--from", self.folder / "origin/step-00000010.h5"], **STEPS)
        self.wait_for_steps(job, "killed", 15)
        cluster.kill_a_rank_on("nst2")
        self.wait_for(job, "killed")
        self.assertIn(f"start 1 of job {job}", self.output("killed"))
        self.assert_went_on("killed", whole, after=25)

    def test_a_lost_node_is_replaced_and_the_job_resumed(self):
        whole = self.whole()
        job = self.submit("lost", "--exclude=nst4", **STEPS)
        # Another job has the first devices of the host that will replace it.
        other = on_head(
            "sbatch", "--nodelist=nst3", "--ntasks=1", "--gres=csd:2", "--output=/dev/null", "--wrap=sleep 600"
        ).split()[-1]
        self.addCleanup(on_head, "scancel", other)
        self.wait_for_steps(job, "lost", 25)
        self.lose_host("nst2")
        self.wait_for(job, "lost")
        self.assertIn(f"start 0 of job {job} on nst[1-2]", self.output("lost"))
        self.assertIn(f"start 1 of job {job} on nst[1,3], devices nst1=0-1 nst3=2-3", self.output("lost"))
        # The state of two ranks was on the lost node's disk, so the run resumes from the newest checkpoint.
        self.assertRegex(self.output("lost"), r"resumed from \S+/step-000000[2-5]0.h5")
        self.assert_went_on("lost", whole, after=21)

    def test_a_job_whose_time_is_nearly_over_commits_and_goes_on(self):
        whole = self.whole()
        job = self.submit("late", "--comment=project 7", **STEPS)
        self.wait_for_steps(job, "late", 10)
        # The signal that Slurm sends for --signal=USR1@120, without waiting for it.
        on_head("scancel", "--signal=USR1", job)
        self.wait_for(job, "late")
        self.assert_states(self.output("late"), "code 75")
        self.assert_went_on("late", whole, after=11)
        self.assert_states(self.output("late"), "120 s")
        # The job's accounts have the tokens of all starts, in the comment that sacct shows.
        shown = on_head("scontrol", "show", "job", job)
        tokens = re.search(r"Comment=project 7 nearstep: starts:\d+ failures:\d+ step:60 tokens:(\d+) ", shown)
        self.assertEqual(tokens and int(tokens[1]), 60 * 8 * 96, shown)
        # No rank was killed while ending. Of later starts only a signal ends any: Open MPI 4.1 sometimes crashes in
        # MPI_Init under srun.
        codes = [int(code) for code in re.findall(r"this start ended with code (\d+)", self.output("late"))]
        self.assertEqual(codes[0], 75)
        self.assertGreater(min(codes[1:], default=129), 128)

    def test_a_refused_requeue_does_not_end_in_0(self):
        job = self.submit(
            "refused",
            self.stubbed("scontrol", "[[ $1 != requeue ]] || { echo 'Requeue is off' >&2; exit 1; }"),
            **STEPS,
        )
        self.wait_for_steps(job, "refused", 5)
        on_head("scancel", "--signal=USR1", job)
        self.wait_for(job, "refused", states=("FAILED",))
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
        self.assert_states(self.output("failing"), "2 times", "code 1")
        shown = on_head("scontrol", "show", "job", job)
        self.assertIn("ExitCode=1:0", shown)
        self.assertIn("nearstep: starts:2 failures:2 step:0 ", shown)

    def test_a_cancelled_job_stays_cancelled(self):
        job = self.submit("cancelled", **STEPS)
        self.wait_for_steps(job, "cancelled", 5)
        on_head("scancel", job)
        self.wait_for(job, "cancelled", states=("CANCELLED",))
        time.sleep(8)
        self.assertEqual(self.state(job), "CANCELLED")
        self.assertNotIn("start 1", self.output("cancelled"))

    def test_storage_hosts_are_a_part_of_the_job_that_has_all_devices(self):
        whole = self.whole()
        stored = {**STEPS, "hosts__names": '["nst1","nst2"]', "hosts__storage": '["nst3"]', "csd__per_rank": 2}
        job = self.submit("stored", "--time=20", ":", "--time=20", ranks=5, **stored)
        self.wait_for_steps(job, "stored", 12)
        on_head("scancel", "--signal=USR1", job)
        self.wait_for(job, "stored")
        said = self.output("stored")
        self.assertRegex(said, rf"start 1 of job {job} on \S+, devices (nst\d=none ){{2}}nst\d=0-1")
        self.assertRegex(said, r"5 ranks on 3 hosts \((nst\d ?){3}\)")
        self.assert_went_on("stored", whole, after=10)
        self.assertRegex(
            "\n".join(self.state_files()),
            r"^nst\d/csd0/state/rank-4.device-0.state\nnst\d/csd1/state/rank-4.device-1.state$",
        )


if __name__ == "__main__":
    slurm_jobs.main()
