"""A restart drops nothing unless asked: it resumes from the newest step of one line of history, or changes nothing.

Here is what neither tests/engine/restart_rules_test.cpp, which enumerates all decisions, nor the restart campaign
reaches."""

import json
import os
import pathlib
import re
import shutil
import unittest.mock

import program

STEPS = 12


class Restart(program.Scenario):
    def two_drives(self, name="p"):
        return f'["{self.folder / name}0","{self.folder / name}1"]'

    def start(self, *flags, ranks=2, fault="", **keys):
        summary = self.folder / "summary.json"
        keys = {"train__steps": STEPS, "csd__path": self.two_drives(), **keys}
        start = program.run if fault else program.run_in_turn
        done = start(ranks, *self.arguments(flags=[*flags, "--json", summary], **keys), fault=fault)
        done.summary = json.loads(summary.read_text()) if done.returncode == 0 else None
        return done

    def finish(self, *flags, **options):
        done = self.start(*flags, **options)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return done

    def refused(self, *flags, words=(), **options):
        """Expects exit code 2, a sentence with these words, and no changed byte."""
        before = program.content(self.folder)
        before.pop(self.folder / "summary.json", None)
        done = self.start(*flags, **options)
        self.assert_refusal(done, *words)
        after = program.content(self.folder)
        after.pop(self.folder / "summary.json", None)
        self.assertEqual(before.keys(), after.keys())
        self.assertEqual(before, after)
        return done

    def flip_bits_of(self, state, places=(0, 1)):
        """Damages these places of every subgroup, of one tile, of a state file; the steps of a run take them
        in turns.
        """
        flipped = bytearray(state.read_bytes())
        extent = 4096 + 12 * 65536
        for at in range(5000, len(flipped), extent):
            flipped[at] ^= 16 if at // extent % 2 in places else 0
        state.write_bytes(bytes(flipped))

    def lose_checkpoints(self):
        shutil.rmtree(self.folder / "p0/checkpoints")

    def whole(self, **keys):
        if not hasattr(self, "whole_summary"):
            self.whole_summary = self.finish(csd__path=self.two_drives("whole"), **keys).summary
        return self.whole_summary

    def test_a_file_of_a_state_whose_manifest_is_not_mounted_stops_the_restart(self):
        """A device's, and an empty one, made by a restart on two ranks that was killed before it wrote anything."""
        for left, devices, flag in (
            ("rank-0.device-1.state", 2, "--resume-if-any"),
            ("rank-1.device-0.set-1.state", 1, "--resume"),
        ):
            drives = f"of-{devices}-p"
            keys = {"ranks": 1, "csd__per_rank": devices, "csd__path": self.two_drives(drives)}
            first, second = (self.folder / f"{drives}{number}" for number in (0, 1))
            self.finish(train__stop_at=5, **keys)
            second.mkdir(exist_ok=True)
            (second / left).touch()
            first.rename(self.folder / "away")
            self.refused(flag, words=[f"{drives}1/{left}", "--fresh"], **keys)
            (self.folder / "away").rename(first)
            self.assertEqual(self.finish("--resume", **keys).summary["first_step"], 6)

    def test_logs_of_a_state_without_its_manifest_stop_the_restart_and_no_fresh_start(self):
        keys = {"ranks": 1, "csd__state": '"compact"', "csd__log": f'["{self.folder / "log"}"]'}
        # Step 8 is in a log; the first subgroup of the state may be older than the checkpoint.
        self.finish(train__stop_at=6, **keys)
        killed = self.start("--resume", fault="rank=0 phase=after_commit count=2", **keys)
        self.assertNotEqual(killed.returncode, 0)
        manifest = self.folder / "p0/rank-0.manifest"
        whole = manifest.read_bytes()
        manifest.write_bytes(whole[: len(whole) // 2])
        self.refused("--resume", words=["rank-0.manifest", "--from", "--fresh"], **keys)
        manifest.unlink()
        self.refused("--resume", words=["rank-0.device-0.state", "--from", "--fresh"], **keys)
        other = {**keys, "csd__path": self.two_drives("other")}
        self.refused("--fresh", words=["csd.path", "another run"], **other)
        self.assertEqual(self.finish("--fresh", train__stop_at=3, **keys).summary["first_step"], 1)
        self.assertEqual(self.finish("--resume", train__stop_at=4, **keys).summary["first_step"], 4)

    def test_state_in_memory_survives_a_kill_and_its_loss_stops_the_restart(self):
        keys = {"csd__speed": '"auto"', "csd__tiers__memory": 0.003}
        killed = self.start(fault="rank=1 phase=before_commit count=4", **keys)
        self.assertNotEqual(killed.returncode, 0)
        memory = pathlib.Path(
            re.search(r"state in memory: 3.1 MB of a rank in (/dev/shm/nearstep-p0-\w+);", killed.stdout)[1]
        )
        self.addCleanup(shutil.rmtree, memory, ignore_errors=True)
        self.assertEqual(
            [file.name for file in sorted(memory.iterdir())], ["rank-0.device-1.state", "rank-1.device-1.state"]
        )
        shutil.move(memory, self.folder / "away")
        self.refused("--resume", words=["rank 0", "rank-0.device-1.state", memory, "--from", "--fresh"], **keys)
        shutil.move(self.folder / "away", memory)
        resumed = self.finish("--resume", train__stop_at=9, **keys)
        self.assertIn(resumed.summary["first_step"], (3, 4))
        speeds = [re.search('csd.speed "auto": .*', done.stdout)[0] for done in (killed, resumed)]
        self.assertEqual(*speeds)
        # Without csd.tiers the state moves to the drives.
        self.lose_checkpoints()
        moved = self.finish("--resume")
        self.assertEqual(moved.summary["first_step"], 10)
        self.assertEqual(moved.summary["masters_xxh3"], self.whole()["masters_xxh3"])
        self.assertFalse(memory.exists())

    def test_a_folder_in_memory_that_others_may_write_is_not_used(self):
        keys = {"csd__speed": "1", "csd__tiers__memory": 0.003}
        first = self.finish(ranks=1, train__stop_at=3, **keys)
        memory = pathlib.Path(re.search(r"state in memory: .* in (/dev/shm/nearstep-p0-\w+);", first.stdout)[1])
        self.addCleanup(shutil.rmtree, memory, ignore_errors=True)
        self.assertEqual(memory.stat().st_mode & 0o777, 0o700)
        memory.chmod(0o777)
        self.refused("--fresh", ranks=1, words=[memory], **keys)
        before = program.content(memory)
        self.finish("--fresh", ranks=1, train__stop_at=3)
        self.assertEqual(program.content(memory), before)
        self.refused("--resume", ranks=1, words=[str(memory)], **keys)

    def test_names_that_lead_elsewhere_are_not_followed(self):
        self.finish(ranks=1, train__stop_at=3)
        thesis = self.folder / "thesis.tex"
        thesis.write_text("a thesis\n")
        state = self.folder / "p0/rank-0.device-0.state"
        state.rename(self.folder / "away")
        for make, flag in ((state.symlink_to, "--resume"), (state.hardlink_to, "--fresh")):
            make(thesis)
            self.refused(flag, ranks=1, words=["p0/rank-0.device-0.state"])
            state.unlink()
        os.mkfifo(state)
        self.refused("--fresh", ranks=1, words=["p0/rank-0.device-0.state"])
        state.unlink()
        (self.folder / "away").rename(state)
        (self.folder / "p0/rank-0.manifest.partial").symlink_to(thesis)
        self.finish("--resume", ranks=1)
        self.assertEqual(thesis.read_text(), "a thesis\n")

    def test_a_requeued_job_does_not_begin_anew_where_its_files_are_gone(self):
        job = {"SLURM_RESTART_COUNT": "1"}
        self.finish(ranks=1, train__stop_at=3)
        with unittest.mock.patch.dict(os.environ, job):
            program.succeed(
                0,
                *self.arguments(
                    flags=["--resume-if-any"], train__steps=STEPS, train__stop_at=5, csd__path=self.two_drives()
                ),
            )
            for name in ("p0", "p1"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self.finish(ranks=1, train__stop_at=3, csd__path=self.two_drives("other"))
            from_other = ["--from", self.folder / "other0/checkpoints/step-00000003.h5"]
            for flags in ([], from_other):
                done = program.run(
                    0,
                    *self.arguments(flags=["--resume-if-any", *flags], train__steps=STEPS, csd__path=self.two_drives()),
                )
                self.assert_refusal(done, "Slurm")
        self.assertFalse((self.folder / "p0/rank-0.manifest").exists())

    def test_a_requeued_job_goes_on_with_its_own_run_alone(self):
        keys = {"train__steps": STEPS, "checkpoint__path": f'"{self.folder / "shared"}"', "train__seed": 5}
        program.succeed(0, *self.arguments(train__stop_at=5, csd__path=self.two_drives("older"), **keys))
        keys["train__seed"] = 6
        job = {"SLURM_JOB_ID": "7", "XDG_STATE_HOME": str(self.folder / "home")}
        again = {**job, "SLURM_RESTART_COUNT": "1"}

        def start(environment, *flags, stop=3):
            with unittest.mock.patch.dict(os.environ, environment):
                return program.run(
                    0, *self.arguments(flags=flags, train__stop_at=stop, csd__path=self.two_drives(), **keys)
                )

        self.assertEqual(start(job, "--fresh").returncode, 0)
        own = re.search(r"(?m)^run = (\w+)", (self.folder / "p0/rank-0.manifest").read_text())[1]
        (self.folder / "p0").rename(self.folder / "away")  # the job moves to a host where an older run lies
        (self.folder / "older0").rename(self.folder / "p0")
        done = start(again, "--resume-if-any", stop=4)
        self.assert_refusal(done, own, "not that of this job", f"run-{own}/step-00000003.h5")
        done = start(again, "--resume-if-any", "--fresh", stop=4)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_states(done.stdout, f"resumed from {self.folder}/shared/run-{own}/step-00000003.h5")
        self.assert_refusal(start(job, "--resume-if-any", "--fresh"), "leave one of them out")

    def test_a_roll_back_that_is_killed_anywhere_has_happened_or_has_not(self):
        self.finish(train__stop_at=3)
        shutil.copytree(self.folder / "p0/checkpoints", self.folder / "copy")
        self.finish("--resume", train__stop_at=9)
        self.lose_checkpoints()
        restore = self.save("p0", "p1")
        cases = [
            (fault, rank)
            for fault in ("mid_write count=2", "before_flush count=1", "before_rename count=1", "after_rename count=1")
            for rank in (0, 1)
        ]
        for fault, rank in program.sweep(cases, 1, 2, 5, 6):
            with self.subTest(fault, rank=rank):
                restore()
                killed = self.start("--from", self.folder / "copy/step-00000003.h5", fault=f"rank={rank} phase={fault}")
                self.assertNotEqual(killed.returncode, 0, killed.stdout)
                resumed = self.finish("--resume")
                self.assertIn(resumed.summary["first_step"], (10, 4))
                self.assertEqual(resumed.summary["masters_xxh3"], self.whole()["masters_xxh3"])
                # Only one set of files is left: the old ones, or those of the roll-back.
                left = [path.name for path in self.folder.glob("p?/rank-*")]
                self.assertEqual(len(left), 4, left)
                self.assertEqual(
                    len([name for name in left if ".set-1." in name]),
                    0 if resumed.summary["first_step"] == 10 else 4,
                    left,
                )

    def test_bit_rot_falls_back_to_a_checkpoint_as_new_and_else_to_the_generation_before(self):
        checkpoints = self.folder / "p0/checkpoints"
        self.finish(train__stop_at=5)
        restore = self.save("p0", "p1")
        for places, harm in (((1,), ""), ((0, 1), ""), ((1,), "lost"), ((1,), "rotten")):
            with self.subTest(places, checkpoints=harm):
                restore()
                if harm == "lost":
                    self.lose_checkpoints()
                if harm == "rotten":
                    part = next(checkpoints.glob("step-00000005.*.rank-00001.h5"))
                    data = bytearray(part.read_bytes())
                    data[len(data) // 2] ^= 16
                    part.write_bytes(data)
                self.flip_bits_of(self.folder / "p1/rank-1.device-0.state", places)
                done = self.finish("--resume")
                self.assertEqual(done.summary["first_step"], 5 if harm else 6)
                self.assertEqual("rank-00001.h5" in done.stdout, harm == "rotten")
                if not harm:
                    self.assert_states(done.stdout, "rank-1.device-0.state", "step-00000005.h5")
                self.assertEqual(done.summary["masters_xxh3"], self.whole()["masters_xxh3"])

    def test_a_newer_step_in_a_folder_that_is_no_longer_named_is_not_ignored(self):
        """The metrics have each step once, though the killed run had computed one more than it committed."""
        keys = {"checkpoint__every": 3, "checkpoint__path": f'"{self.folder / "checkpoints"}"'}
        metrics = self.folder / "metrics.jsonl"
        killed = self.start("--metrics", metrics, fault="rank=0 phase=before_commit count=7", **keys)
        self.assertEqual(killed.returncode, 137, killed.stderr)
        refused = self.refused("--resume", csd__path=f'"{self.folder / "other"}"', **keys)
        self.assertRegex(refused.stderr, r"\bStep 5 .*/p0 .*csd.path .*--from .*step-00000003.h5")
        resumed = self.finish("--resume", "--metrics", metrics, **keys).summary
        self.assertEqual((resumed["first_step"], resumed["masters_xxh3"]), (6, self.whole()["masters_xxh3"]))
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines if "loss" in line], list(range(1, STEPS + 1)))

    def test_state_resumed_without_durable_steps_is_saved_first(self):
        self.finish(train__stop_at=5)
        self.lose_checkpoints()
        keys = {"csd__durability": '"checkpoint"'}
        killed = self.start("--resume", fault="rank=0 phase=after_gradients count=2", **keys)
        self.assertNotEqual(killed.returncode, 0)
        resumed = self.finish("--resume", **keys)
        self.assertIn("step-00000005.h5 at step 5", resumed.stdout)
        self.assertEqual(resumed.summary["masters_xxh3"], self.whole()["masters_xxh3"])

    def save(self, *names):
        """Saves copies of folders; returns a function that restores them."""
        for name in names:
            shutil.copytree(self.folder / name, self.folder / f"saved-{name}")

        def restore():
            for name in names:
                shutil.rmtree(self.folder / name, ignore_errors=True)
                shutil.copytree(self.folder / f"saved-{name}", self.folder / name)

        return restore

    def test_a_move_to_another_layout_that_is_killed_has_happened_or_has_not(self):
        stopped = self.finish(train__stop_at=5)
        self.lose_checkpoints()
        restore = self.save("p0", "p1")
        cases = [
            (fault, rank)
            for fault in (
                "mid_read count=2",
                "mid_write count=3",
                "before_flush count=2",
                "before_rename count=1",
                "after_rename count=1",
            )
            for rank in (0, 2)
        ]
        other = {"ranks": 3, "placement__optimizer": "node"}
        for fault, rank in program.sweep(cases, 0, 3, 4, 7, 8):
            with self.subTest(fault, rank=rank):
                restore()
                killed = self.start("--resume", train__stop_at=5, fault=f"rank={rank} phase={fault}", **other)
                if killed.returncode == 0:
                    self.assertEqual((fault.split()[0], rank), ("mid_read", 2))  # it has no old file to read
                # Back again, from a layout whose files have other names.
                for layout in (other, {"mode": "base"}):
                    resumed = self.finish("--resume", train__stop_at=5, **layout)
                    self.assertEqual(resumed.summary["masters_xxh3"], stopped.summary["masters_xxh3"])
                    self.lose_checkpoints()
                for kind in ("manifest", "state"):
                    self.assertEqual(len(list(self.folder.glob(f"p?/*.{kind}"))), 2)
        for layout in ({}, {"ranks": 1, "csd__state": '"bf16"'}):
            self.assertEqual(self.finish("--resume", **layout).summary["masters_xxh3"], self.whole()["masters_xxh3"])
            self.lose_checkpoints()

    def test_old_files_that_cannot_be_reached_are_named(self):
        self.finish(train__stop_at=5)
        self.lose_checkpoints()
        state = self.folder / "p1/rank-1.device-0.state"
        state.rename(self.folder / "away.state")
        self.refused("--resume", ranks=1, words=["rank 1", "rank-1.device-0.state", "p1/rank-1.manifest"])
        self.refused("--resume", ranks=1, csd__path=f'"{self.folder}/p0"', words=["rank 1", "p1/rank-1.manifest"])
        (self.folder / "away.state").rename(state)
        self.flip_bits_of(state)
        self.refused("--resume", ranks=1, words=["rank-1.device-0.state", "--from"])

    def test_another_seed_begins_a_line(self):
        self.finish(train__stop_at=4)
        changed = self.finish("--resume", train__seed=9, train__stop_at=6)
        goes_on = r"\b[0-9a-f]{16} .*\bstep 4 .* [0-9a-f]{16}"
        self.assertRegex(changed.stdout, goes_on)
        self.assertNotRegex(self.finish("--resume", train__seed=9).stdout, goes_on)

    def test_a_change_of_number_format_keeps_its_loss_scale(self):
        self.finish(train__stop_at=4)
        to_fp16 = self.finish("--resume", model__dtype='"fp16"', train__stop_at=6, train__loss_scale=1024)
        metrics = self.folder / "metrics.jsonl"
        self.assertEqual(to_fp16.summary["first_step"], 5)
        self.finish("--resume", "--metrics", metrics, model__dtype='"fp16"', train__stop_at=7)
        scales = [json.loads(line)["loss_scale"] for line in metrics.read_text().splitlines() if "loss_scale" in line]
        self.assertEqual(scales, [1024])


if __name__ == "__main__":
    program.main()
