"""Tests that, after a notice to stop, a run saves first and does not evaluate. Only nearstep's own files are deleted.
Exit codes say whether to continue."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

import program

# So many steps that no machine finishes before the notice.
LONG = {"train__steps": 20000, "train__evaluate_batches": 2}


class Signals(program.Scenario):
    starts_anew = True

    def start(self, *words, **options):
        """Starts a run with its output in a file, and waits for its metrics file."""
        self.said = self.folder / "said"
        with self.said.open("w") as out:
            running = subprocess.Popen(
                [str(word) for word in words],
                cwd=program.ROOT,
                env={**program.environment(), **options},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        self.addCleanup(running.wait)
        self.addCleanup(running.kill)
        return running

    def start_long(self, *before, durability="step", keys=None, **options):
        self.metrics = self.folder / "metrics.jsonl"
        arguments = self.arguments(
            flags=["--metrics", self.metrics, "--json", self.folder / "stopped.json"],
            csd__durability=f'"{durability}"',
            **(keys or LONG),
        )
        return self.start(*before, "launch/ranks", 2, program.PROGRAM_FORKED, *arguments, **options)

    def wait_for(self, condition, running):
        end = time.monotonic() + program.HANG_S
        while not condition():
            self.assertIsNone(running.poll(), self.said.read_text())
            self.assertLess(time.monotonic(), end, self.said.read_text())
            time.sleep(0.05)

    def has_steps(self):
        return self.metrics.exists() and len(self.metrics.read_text().splitlines()) >= 4

    def assert_stopped(self, running):
        self.assertEqual(running.wait(timeout=program.HANG_S), 75, self.said.read_text())
        summary = json.loads((self.folder / "stopped.json").read_text())
        self.assertIsNone(summary["heldout_loss"])
        self.assertIsNone(summary["masters_xxh3"])
        return summary

    def checkpoints(self):
        return [path.name for path in self.folder.rglob("step-????????.h5")]

    def assert_goes_on(self, stopped, durability):
        last = stopped["steps"] + 2
        flags = {"csd__durability": f'"{durability}"', **LONG, "train__stop_at": last}
        rest = self.train(flags=["--resume"], **flags)
        self.assertEqual(rest["first_step"], stopped["steps"] + 1)
        whole = self.train(state="whole", **flags)
        self.assertEqual(stopped["losses"] + rest["losses"], whole["losses"])
        self.assertEqual(rest["masters_xxh3"], whole["masters_xxh3"])

    def test_sigterm_of_timeout_saves_what_is_not_durable_yet(self):
        # timeout passes a signal on to its whole process group, as a batch system's shell does.
        for durability in ("checkpoint", "step"):
            with self.subTest(durability=durability):
                program.shutil.rmtree(self.folder / "state", ignore_errors=True)
                program.shutil.rmtree(self.folder / "whole", ignore_errors=True)
                (self.folder / "metrics.jsonl").unlink(missing_ok=True)
                running = self.start_long("timeout", "--preserve-status", "100", durability=durability)
                self.wait_for(self.has_steps, running)
                running.send_signal(signal.SIGTERM)
                stopped = self.assert_stopped(running)
                self.assertEqual(len(self.checkpoints()), 1 if durability == "checkpoint" else 0)
                self.assert_goes_on(stopped, durability)

    def test_sigusr1_to_the_launcher_reaches_all_ranks(self):
        running = self.start_long()
        self.wait_for(self.has_steps, running)
        running.send_signal(signal.SIGUSR1)
        self.assert_stopped(running)
        self.assertEqual(self.checkpoints(), [])

    def test_an_evaluation_ends_when_the_notice_comes_and_the_steps_are_safe(self):
        running = self.start_long(
            durability="checkpoint", keys={"train__steps": 3, "train__evaluate_batches": 10000000}
        )
        self.wait_for(self.checkpoints, running)
        time.sleep(1)
        running.send_signal(signal.SIGTERM)
        self.assert_stopped(running)
        self.assertEqual(self.checkpoints(), ["step-00000003.h5"])
        flags = {"csd__durability": '"checkpoint"', "train__steps": 3, "train__evaluate_batches": 2}
        self.assertEqual(
            self.train(flags=["--resume"], **flags)["masters_xxh3"], self.train(state="whole", **flags)["masters_xxh3"]
        )

    def test_sigint_ends_a_run_at_once(self):
        # A shell that starts these tests in the background ignores SIGINT, and children inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        running = self.start_long(keys={"train__steps": 3, "train__evaluate_batches": 10000000})
        self.wait_for(self.has_steps, running)
        running.send_signal(signal.SIGINT)
        self.assertEqual(running.wait(timeout=program.HANG_S), 128 + signal.SIGINT)
        self.assertNotIn("ended", self.said.read_text())  # nobody is to blame

    def test_a_run_that_was_stopped_as_a_whole_goes_on(self):
        self.metrics = self.folder / "metrics.jsonl"
        running = self.start(
            "launch/ranks",
            2,
            program.PROGRAM,
            *self.arguments(flags=["--metrics", self.metrics], exchange__timeout_s=1, **LONG),
        )
        self.wait_for(self.has_steps, running)
        ranks = [
            int(path.parent.name)
            for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")
            if path.read_bytes().startswith(bytes(program.PROGRAM)) and str(self.metrics).encode() in path.read_bytes()
        ]
        self.assertEqual(len(ranks), 2)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for rank in ranks:
                os.kill(rank, number)
            time.sleep(2)  # longer than exchange.timeout_s, and time to notice
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(timeout=program.HANG_S), 75, self.said.read_text())

    def test_a_run_says_whether_its_notice_is_long_enough(self):
        def head(**keys):
            done = program.call(
                program.PROGRAM_FORKED,
                *self.arguments(flags=["--fresh"], train__steps=1, **keys),
                NEARSTEP_NOTICE="120",
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        self.assert_states(head(), "120 s")
        said = head(csd__durability='"checkpoint"')
        self.assertRegex(said, r"checkpoint .*\b[\d.]+ s .* 120 s")
        self.assertNotIn("warning", said)
        self.assertRegex(head(csd__durability='"none"'), "warning: .* 120 s")


class Deletes(program.Scenario):
    def test_compare_removes_its_own_files_alone(self):
        folder = self.folder / "state/compare"
        folder.mkdir(parents=True)
        notes = folder / "notes.txt"
        notes.write_text("of a comparison of last year")
        arguments = ["compare", *self.arguments(train__steps=4)[1:], "--steps", 2, "--modes", "base,su+o"]
        done = program.succeed(2, *arguments)
        self.assertEqual([path.name for path in folder.iterdir()], ["notes.txt"])
        self.assertEqual(notes.read_text(), "of a comparison of last year")
        self.assert_states(done.stdout, notes)
        notes.unlink()
        self.assertEqual(program.run(2, *arguments).returncode, 0)
        self.assertFalse(folder.exists())

    def test_what_nearstep_has_not_made_is_not_overwritten(self):
        state = self.folder / "state"
        for folder, command in ((state, ["train"]), (state / "compare", ["compare"])):
            for name in ("rank-1.device-0.state", "rank-0.manifest"):
                if command == ["compare"] and name == "rank-0.manifest":
                    continue  # compare makes none
                with self.subTest(command=command, name=name):
                    folder.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_text("my own notes")
                    arguments = (
                        command + self.arguments(flags=["--fresh"] if command == ["train"] else [], csd__per_rank=1)[1:]
                    )
                    done = program.run(2, *arguments)
                    self.assert_refusal(done, name)
                    self.assertEqual(
                        len([line for line in done.stderr.splitlines() if line.startswith("nearstep")]), 1, done.stderr
                    )
                    self.assertEqual((folder / name).read_text(), "my own notes")
                    program.shutil.rmtree(state)

    def test_a_fresh_start_says_what_it_overwrites(self):
        self.train(train__stop_at=2)
        done = program.run(2, *self.arguments(flags=["--fresh"], train__steps=1))
        self.assert_states(done.stdout, "--fresh", "manifests: 2")


class Launchers(program.Scenario):
    def test_a_checkpoint_folder_that_is_another_one_on_some_host_is_refused_at_the_start(self):
        folder = self.folder / "checkpoints"
        folder.mkdir()
        # Rank 1 sees another folder under that name, as a host would without a shared folder.
        wrapper = program.make_script(
            self.folder / "program",
            f'[[ $OMPI_COMM_WORLD_RANK == 1 ]] || exec {program.PROGRAM} "$@"\n'
            f'exec unshare -m sh -c \'mount -t tmpfs tmpfs {folder} && exec {program.PROGRAM} "$@"\' sh "$@"',
        )
        if (
            subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True).returncode
            != 0
        ):
            raise unittest.SkipTest("no file system can be mounted here")
        arguments = self.arguments(train__steps=2, checkpoint__path=f'"{folder}"')
        done = program.call("launch/ranks", 2, wrapper, *arguments)
        self.assert_refusal(done, "checkpoint.path", folder)
        self.assertEqual(list((self.folder / "state").rglob("*.state")), [])
        self.assertEqual(list(self.folder.rglob("nearstep-shared-*")), [])

    def test_a_program_that_handles_sigterm_alone_gets_it(self):
        program.make_script(
            self.folder / "handles",
            f"trap 'echo saved >{self.folder}/saved-$OMPI_COMM_WORLD_RANK; exit 0' TERM\n"
            f"touch {self.folder}/begun-$OMPI_COMM_WORLD_RANK\nfor ((i = 0; i < 1000; i++)); do sleep 0.1; done",
        )
        running = subprocess.Popen(
            ["launch/ranks", "2", str(self.folder / "handles")], cwd=program.ROOT, env=program.environment()
        )
        self.addCleanup(running.kill)
        while len(list(self.folder.glob("begun-*"))) < 2:
            self.assertIsNone(running.poll())
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(timeout=program.HANG_S), 0)
        self.assertEqual(len(list(self.folder.glob("saved-*"))), 2)

    def test_no_rank_is_blamed_for_a_host_that_is_not_reached_or_a_signal_that_is_none(self):
        hosts = self.folder / "hosts"
        absent = [f"203.0.113.{number}" for number in range(100)]  # Open MPI 4.1 waits for them without end
        hosts.write_text("\n".join([os.uname().nodename, *absent]))
        run = ["-c", "import nearstep_run, sys; sys.exit(nearstep_run.main())"]
        python = {"PYTHONPATH": str(program.ROOT / "python"), "OMPI_MCA_plm_rsh_agent": "/bin/false"}
        done = program.call(sys.executable, *run, "--hostfile", hosts, "--no-python", "true", **python)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (1, 1), done.stderr)
        self.assert_states(done.stderr, "No rank began", ", ".join(absent[:8]) + " and 92 more", "/bin/false HOST true")
        self.assertNotRegex(done.stderr, r"A rank|Rank \d")
        done = program.call(
            sys.executable, *run, "--no-python", "--nproc-per-node", 2, "sh", "-c", "exit 255", **python
        )
        self.assertRegex(done.stderr, r"nearstep-run: (A rank|Rank \d) ended with code 255")

    def test_mpiruns_share_no_folder(self):
        """With a shared folder, one mpirun that ends removes it while another that starts is about to make its own in
        it."""
        for base in ("TMPDIR", "OMPI_MCA_orte_tmpdir_base"):
            with self.subTest(base=base):
                folder = self.folder / base
                folder.mkdir()
                kept = {
                    key: value for key, value in program.environment().items() if key != "OMPI_MCA_orte_tmpdir_base"
                }
                done = [
                    subprocess.run(
                        ["launch/ranks", "1", "sh", "-c", "echo $OMPI_MCA_orte_top_session_dir"],
                        cwd=program.ROOT,
                        env={**kept, base: str(folder)},
                        text=True,
                        capture_output=True,
                        check=True,
                    )
                    for _ in range(2)
                ]
                self.assertEqual([pathlib.Path(one.stdout.strip()).parents[1] for one in done], [folder, folder])
                self.assertNotEqual(done[0].stdout, done[1].stdout)
                self.assertEqual(list(folder.iterdir()), [])

    def test_the_check_of_a_host_may_take_longer_than_a_minute(self):
        # A minute is 6 s here.
        stub = program.make_script(
            self.folder / "bin/timeout",
            '[[ $1 == -k ]] && shift 2\n[[ " $* " == *" preflight "* ]] || exec /usr/bin/timeout "$@"\n'
            'exec /usr/bin/timeout "$(($1 / 10))" "${@:2}"',
        )
        slow = program.make_script(
            self.folder / "program", f'[[ $1 != preflight ]] || sleep 8\nexec {program.PROGRAM} "$@"'
        )
        done = program.call(
            "launch/mpirun",
            "configs/tiny.toml",
            "cluster/localhost",
            "-n",
            1,
            "--check",
            *self.arguments(csd__speed='"auto"')[2:],
            NEARSTEP_TIMEOUT="86400",
            NEARSTEP_PROGRAM=str(slow),
            PATH=f"{stub.parent}:{os.environ['PATH']}",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(
            'all checked; csd.speed "auto" is measured at start, so space was checked for equal shares', done.stderr
        )


if __name__ == "__main__":
    program.main()
