"""A run that is killed again and again, anywhere, ends like an undisturbed run.

NEARSTEP_CRASH_KILLS sets the kills of test_one_rank and test_three_ranks together: by default 20, in `tests/run --long`
60. NEARSTEP_CRASH_SEED repeats the random ones. The long run, from this folder,
    NEARSTEP_CRASH_KILLS=200 python3 -m unittest -v crash_test.Crash.test_one_rank crash_test.Crash.test_three_ranks
passed in 449 s on two shared cores: 133 kills of one rank within 227 steps and 67 of three ranks within 136 steps (seed
519437467), with the metrics and the masters of the undisturbed runs, bit by bit.
"""
import json
import os
import random
import subprocess
import time

import program

KILLS = int(os.environ.get("NEARSTEP_CRASH_KILLS", 60 if "NEARSTEP_LONG" in os.environ else 20))
SEED = int(os.environ.get("NEARSTEP_CRASH_SEED", random.randrange(1 << 30)))

# The phases, and how often a rank reaches each in a step with one device of two subgroups, or in a checkpoint.
IN_A_STEP = {"after_scatter": 3, "after_gradients": 1, "mid_read": 2, "mid_write": 3, "before_commit": 1,
             "before_flush": 2, "after_flush": 2, "before_rename": 1, "after_rename": 1, "after_commit": 1}
IN_A_CHECKPOINT = {"mid_checkpoint": 2, "before_checkpoint_index": 1, "after_checkpoint_index": 1}
PHASES = {**IN_A_STEP, **IN_A_CHECKPOINT}
STEPS = 400
CHECKPOINT_EVERY = 7

# The smallest network with several tiles: 98,560 parameters for one rank, 337,920 for three; a llama of 217,800 for two.
SMALL = {"model__layers": 1, "model__heads": 2, "model__context": 16, "train__global_batch": 3,
         "train__micro_batch": 1, "train__steps": STEPS, "train__evaluate_batches": 1,
         "train__evaluate_every": 5, "checkpoint__every": CHECKPOINT_EVERY, "csd__subgroup_tiles": 1}
WIDTHS = {1: 80, 2: 120, 3: 136}
LLAMA = {"model__architecture": "llama", "model__kv_heads": 1, "model__hidden": 400}


def lines_of(metrics):
    """The results in a metrics file that do not depend on the clock."""
    kept = ("step", "loss", "heldout_loss", "gradient_norm", "learning_rate", "loss_scale", "skipped")
    return [{key: line[key] for key in kept if key in line}
            for line in map(json.loads, metrics.read_text().splitlines())]


class Crash(program.Scenario):
    starts_anew = True

    def arguments_of(self, ranks, state, dtype, **keys):
        flags = ["--metrics", self.folder / f"{state}.jsonl", "--json", self.folder / f"{state}.json"]
        return self.arguments(state=state, flags=flags, model__width=WIDTHS[ranks], model__dtype=dtype,
                              **SMALL, **keys)

    def results(self, state):
        summary = json.loads((self.folder / f"{state}.json").read_text())
        return summary["masters_xxh3"], lines_of(self.folder / f"{state}.jsonl")

    def start(self, ranks, arguments, fault):
        """Starts a run, by mpirun if it has several ranks. It may be killed."""
        return program.run(0 if ranks == 1 else ranks, *arguments, fault=fault)

    def go_on(self, ranks, arguments, fault=""):
        """Resumes a run, or starts it anew if it was killed before anything was committed."""
        done = self.start(ranks, arguments + ["--resume"], fault)
        if done.returncode == 2 and "There is no checkpoint" in done.stderr:
            done = self.start(ranks, arguments, fault)
        return done

    def assert_killed(self, done):
        # mpirun reports the signal of a rank as 128 + 9.
        self.assertIn(done.returncode, (-9, 137), f"{done.args}\n{done.stdout}\n{done.stderr}")

    def kill_again_and_again(self, ranks, kills, dtype="bf16", **keys):
        """Compares an undisturbed run with one that is killed `kills` times on its way to the same last step."""
        print(f"{ranks} ranks, {kills} kills, seed {SEED}", flush=True)
        draw = random.Random(SEED + ranks)
        # First each phase in turn, so that all occur, then random phases. Each life lasts a few steps.
        phases = list(PHASES)
        draw.shuffle(phases)
        for kill in range(kills):
            phase = phases[kill] if kill < len(phases) else draw.choice(phases)
            steps = draw.randrange(3) if phase in IN_A_STEP else 0
            # A start also commits once, so counts below a step's are reached there.
            count = draw.randrange(PHASES[phase] * (steps + 1)) + 1
            fault = f"rank={draw.randrange(ranks)} phase={phase} count={count}"
            # Each step reads, unless slots keep the state.
            life = dict(keys, csd__slots=4) if phase == "mid_read" else keys
            self.assert_killed(self.go_on(ranks, self.arguments_of(ranks, "killed", dtype, **life), fault))
        # A step is reported before it is committed, so this is no less than the step that the last run resumes from.
        # What a life says does not tell: one killed as it starts says nothing.
        metrics = self.folder / "killed.jsonl"
        reached = max((line.get("step", 0) for line in lines_of(metrics)), default=0) if metrics.exists() else 0
        last = min(STEPS, reached + CHECKPOINT_EVERY + 3)
        done = self.go_on(ranks, self.arguments_of(ranks, "killed", dtype, train__stop_at=last, **keys))
        self.assertEqual(done.returncode, 0, done.stderr)
        whole = self.start(ranks, self.arguments_of(ranks, "whole", dtype, train__stop_at=last, **keys), "")
        self.assertEqual(whole.returncode, 0, whole.stderr)
        print(f"{ranks} ranks: {kills} kills within {last} steps", flush=True)
        self.assertEqual(self.results("killed"), self.results("whole"))
        self.assertEqual([line["step"] for line in self.results("killed")[1] if "loss" in line],
                         list(range(1, last + 1)))

    def test_one_rank(self):
        self.kill_again_and_again(1, KILLS * 2 // 3)

    def test_three_ranks(self):
        self.kill_again_and_again(3, KILLS - KILLS * 2 // 3)

    def test_a_llama_on_two_ranks(self):
        self.kill_again_and_again(2, 4, **LLAMA)

    def test_skipped_steps_of_fp16(self):
        # The first scales are too large, so steps are skipped. Each skipped step is also a commit.
        self.kill_again_and_again(1, 5, dtype="fp16", train__loss_scale=2.0**32)
        self.assertTrue(any(line.get("skipped") for line in lines_of(self.folder / "killed.jsonl")))

    def small_run(self, ranks=2, state="state", flags=(), **keys):
        return self.arguments(state=state, flags=flags, train__steps=8, **keys)

    def finish(self, **options):
        """Resumes the run to its end; returns its output and summary."""
        summary = self.folder / "summary.json"
        done = program.succeed(2, *self.small_run(flags=["--resume", "--json", summary], **options))
        return done.stdout, json.loads(summary.read_text())

    def whole_masters(self):
        return self.train(state="whole", train__steps=8)["masters_xxh3"]

    def test_a_write_that_fails_ends_the_job_on_all_ranks(self):
        masters = self.whole_masters()
        start = time.monotonic()
        done = program.run(2, *self.small_run(), fault="rank=1 phase=mid_write count=23 action=fail")
        self.assertLess(time.monotonic() - start, 60)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, r'rank 1: Cannot write state file ".*rank-1\.device-0\.state" at offset \d+ '
                                      r"\(Input/output error\).*--resume")
        said, summary = self.finish()
        self.assertIn("resumed from the state files", said)
        self.assertEqual(summary["masters_xxh3"], masters)

    def flip(self, place):
        """Flips a bit at that place in every subgroup of rank 1, which has 4 subgroups of one tile."""
        extent = 4096 + 12 * 65536
        with open(self.folder / "state/rank-1.device-0.state", "rb+") as state:
            for subgroup in range(4):
                state.seek((2 * subgroup + place) * extent + 5000)
                byte = state.read(1)[0]
                state.seek(-1, 1)
                state.write(bytes([byte ^ 16]))

    def test_bit_rot_falls_back_to_a_checkpoint_as_new_and_else_to_the_generation_before(self):
        masters = self.whole_masters()
        for places in ([1], [0, 1]):
            self.train(train__steps=8, train__stop_at=5, flags=["--fresh"])
            for place in places:
                self.flip(place)
            said, summary = self.finish()
            self.assertIn("The state of step 5 is not used", said)
            self.assertIn("rank-1.device-0.state", said)
            self.assertIn("data is damaged", said)
            self.assertIn("step-00000005.h5 at step 5", said)
            self.assertEqual(summary["masters_xxh3"], masters)
        for is_there in (False, True):
            self.train(train__steps=8, train__stop_at=5, flags=["--fresh"])
            checkpoints = self.folder / "state/checkpoints"
            if is_there:
                part = next(checkpoints.glob("step-00000005.*.rank-00001.h5"))
                data = bytearray(part.read_bytes())
                data[len(data) // 2] ^= 16
                part.write_bytes(data)
            else:
                program.shutil.rmtree(checkpoints)
            self.flip(place=1)
            said, summary = self.finish()
            self.assertIn("resumed from the state files at step 4", said)
            self.assertEqual("rank-00001.h5" in said, is_there)
            self.assertEqual(summary["masters_xxh3"], masters)

    def test_state_alone_is_enough_to_go_on_and_is_not_overwritten_unasked(self):
        masters = self.whole_masters()
        self.train(train__steps=8, train__stop_at=5)
        program.shutil.rmtree(self.folder / "state/checkpoints")
        self.assert_refusal(program.run(2, *self.small_run()), "step 5 of 8", "--resume")
        said, summary = self.finish()
        self.assertIn("resumed from the state files at step 5", said)
        self.assertEqual(summary["masters_xxh3"], masters)
        self.assertTrue((self.folder / "state/checkpoints/step-00000008.h5").exists())

    def test_a_newer_step_in_a_folder_that_is_no_longer_named_is_not_ignored(self):
        masters = self.whole_masters()
        keys = {"checkpoint__every": 3, "checkpoint__path": f'"{self.folder / "checkpoints"}"'}
        self.assert_killed(program.run(2, *self.small_run(**keys), fault="rank=0 phase=before_commit count=7"))
        moved = dict(keys, csd__path=f'"{self.folder / "other"}"')
        refused = program.run(2, *self.small_run(flags=["--resume"], **moved))
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertRegex(refused.stderr, r"Step 5 of run \w+ is in .*/state on .*, which csd.path does not name.*--from .*step-00000003.h5")
        said, summary = self.finish(**keys)
        self.assertIn("resumed from the state files at step 5", said)
        self.assertEqual(summary["masters_xxh3"], masters)

    def test_a_second_job_is_refused_and_changes_nothing(self):
        # The run stops itself as soon as its last checkpoint is durable, and holds its files.
        first = subprocess.Popen([str(program.PROGRAM), *map(str, self.arguments(train__steps=8))], cwd=program.ROOT,
                                 env=program.environment(fault="rank=0 phase=after_checkpoint_index action=stop"),
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            self.assertIsNone(first.poll())
            self.assertTrue((self.folder / "state/checkpoints/step-00000008.h5").exists())
            before = program.content(self.folder / "state")
            # Each waits some seconds for a run that may be ending.
            starts = [(ranks, self.small_run(flags=flags)) for flags in ([], ["--fresh"], ["--resume"]) for ranks in (0, 3)]
            for done in program.run_all(starts):
                self.assert_refusal(done, "rank-0.device-0.state", "in use by another nearstep process")
            after = program.content(self.folder / "state")
            self.assertEqual(before, after)
            self.assertIsNone(first.poll())
        finally:
            first.kill()
            first.wait()
        summary = self.train(ranks=0, train__steps=8, flags=["--resume"])
        self.assertEqual(summary["masters_xxh3"], self.train(ranks=0, state="alone", train__steps=8)["masters_xxh3"])


if __name__ == "__main__":
    program.main()
