"""A run that stopped resumes as if it had not."""

import json
import re
import shutil

import program


# A quarter of that config's tokens.
SHORT_LLAMA = {"train__global_batch": 16, "train__micro_batch": 8, "model__context": 32, "train__evaluate_batches": 4}
KEYS_OF_CODES = {
    "mode": "su+o+c",
    "csd__durability": "checkpoint",
    "train__steps": 20,
    "compress__error_feedback": "true",
    "train__scale_growth_steps": 5,
}
EXACT_TOPK = {**KEYS_OF_CODES, "compress__codec": "topk", "placement__gradients": "replicated"}
HALF_Q4 = {**KEYS_OF_CODES, "compress__codec": "q4", "model__dtype": "fp16", "placement__gradients": "node"}
# This norm clips every step, so the previous norm matters.
DELAYED = {"train__clip_norm": 0.1, "train__clipping": "delayed", "mode": "su+o", "train__steps": 6}
MATRICES = {"train__decay": "matrices", "train__weight_decay": 0.5}
DELTA = {"gather__codec": "delta"}
# Settings, the step at which the run stops, and what is set otherwise when it goes on.
GOES_ON = [
    ({"config": "configs/tiny.toml", "model__dtype": "fp16", "train__steps": 20}, 10, {}),
    ({"config": "configs/llama-small.toml", "train__steps": 12, **SHORT_LLAMA}, 6, {}),
    ({"csd__state": "q8", "train__steps": 8, **MATRICES}, 3, {"csd__per_rank": 1}),
    ({"csd__state": "compact", "train__steps": 12, **DELTA}, 6, {"csd__per_rank": 1, "gather__codec": "dense"}),
    (EXACT_TOPK, 9, {}),
    (HALF_Q4, 9, {}),
    ({"train__steps": 16, **DELTA}, 8, {}),
    *(({**DELAYED, "csd__durability": durability}, 3, {}) for durability in ("step", "checkpoint")),
]


class Resume(program.Scenario):
    wholes = {}

    def whole(self, keys):
        """The run that is not stopped, on two devices per rank."""
        keys = {"csd__per_rank": 2, **keys}
        name = json.dumps(keys, sort_keys=True)
        if name not in self.wholes:
            self.wholes[name] = self.train(state=f"whole-{len(self.wholes)}", **keys)
        return self.wholes[name]

    def test_a_run_that_stops_and_goes_on_has_the_bits_of_one_that_does_not(self):
        for keys, stop, changed in GOES_ON:
            with self.subTest(stop=stop, changed=changed, **keys):
                # The others show the same within one process.
                self.starts_anew = keys.get("config") == "configs/tiny.toml"
                keys = {"csd__per_rank": 2, **keys}
                whole = self.whole(keys)
                first = self.train(state="parts", flags=["--fresh"], train__stop_at=stop, **keys)
                second = self.train(state="parts", flags=["--resume"], **{**keys, **changed})
                self.assertEqual(first["steps"], stop)
                self.assert_goes_on(whole, first, second)
                self.assertEqual(second["heldout_loss"], whole["heldout_loss"])
                if "config" in keys:
                    self.assertLess(whole["losses"][-1], whole["losses"][0] - 0.3)

    def test_error_feedback_and_delayed_clipping_change_the_bits(self):
        no_feedback = {"compress__error_feedback": "false"}
        for keys, without in (
            (EXACT_TOPK, no_feedback),
            (HALF_Q4, no_feedback),
            (DELAYED, {"train__clipping": "exact"}),
        ):
            with self.subTest(**keys):
                whole = self.whole(keys)
                other = self.train(state="without", flags=["--fresh"], **{"csd__per_rank": 2, **keys, **without})
                self.assertNotEqual(other["masters_xxh3"], whole["masters_xxh3"])
                self.assertNotEqual(other["losses"], whole["losses"])
                self.assertEqual(other["losses"][:2], whole["losses"][:2])  # both look at the step before

    def test_other_ranks_go_on_with_the_same_loss(self):
        """Sums of other ranks have another order; the gather and the placement of devices change nothing."""
        keys = {**KEYS_OF_CODES, "compress__codec": "q4", "placement__gradients": "replicated"}
        whole = self.whole(keys)
        self.train(state="parts", train__stop_at=10, **keys)
        second = self.train(ranks=3, state="parts", flags=["--resume"], **keys)
        self.assertEqual(second["first_step"], 11)
        self.assertLessEqual(abs(second["heldout_loss"] - whole["heldout_loss"]), 2e-2)
        results = []
        for codec in ("dense", "delta"):
            keys = {"train__steps": 12, "gather__codec": codec}
            self.train(state=codec, csd__per_rank=2, train__stop_at=6, **keys)
            results.append(self.train(ranks=3, state=codec, flags=["--resume"], **keys))
        self.assert_same_bits(*results)

    def test_the_number_of_storage_ranks_may_change(self):
        usual = self.train(train__steps=5)
        for last, storage in enumerate((1, 2, 0, 3, 1), 1):
            parts = self.train(
                ranks=2 + storage,
                csd__storage_ranks=storage,
                state="elastic",
                train__steps=5,
                train__stop_at=last,
                flags=["--resume-if-any"],
            )
            self.assertEqual(parts["first_step"], last)
            shutil.rmtree(self.folder / "elastic/checkpoints")  # the next run reads the state files
        self.assertEqual(parts["masters_xxh3"], usual["masters_xxh3"])

    def test_threads_share_a_move_to_another_layout(self):
        keys = {"threads": 3, "train__steps": 4}
        usual = self.train(csd__per_rank=2, **keys)
        for last, devices, tiles in ((1, 2, 2), (2, 5, 3), (3, 1, 1), (4, 3, 2)):
            flags = ["--resume-if-any"]
            layout = {"csd__per_rank": devices, "csd__subgroup_tiles": tiles}
            parts = self.train(state="parts", train__stop_at=last, flags=flags, **layout, **keys)
            self.assertEqual(parts["first_step"], last)
        self.assertEqual(parts["masters_xxh3"], usual["masters_xxh3"])

    def test_another_number_of_threads_is_said(self):
        """Threads share sums, so their number decides the bits of the model's own arithmetic."""
        self.train(train__steps=9, train__stop_at=1)
        ways = (
            (["--from", self.folder / "state/checkpoints/step-00000001.h5"], 2, r"\b1 threads per rank\b.*\b2\b"),
            (["--resume"], 2, None),
            (["--resume"], 1, r"\b2 threads per rank\b.*\b1\b"),
        )
        for stop, (flags, threads, said) in enumerate(ways, 2):
            done = program.succeed(
                2, *self.arguments(train__steps=9, train__stop_at=stop, flags=flags), threads=threads
            )
            lines = [line for line in (done.stdout + done.stderr).splitlines() if "threads per rank" in line]
            self.assertEqual(len(lines), 1 if said else 0, lines)
            if said:
                self.assertRegex(lines[0], said + ".*OMP_NUM_THREADS")

    def test_waiting_threads_spin_for_a_short_time_unless_the_user_says_otherwise(self):
        shown = {}
        for given in ({}, {"GOMP_SPINCOUNT": "77"}, {"OMP_WAIT_POLICY": "active"}):
            done = program.call(
                program.PROGRAM,
                *self.arguments(state=f"state-{len(shown)}", train__stop_at=1),
                OMP_NUM_THREADS="2",
                OMP_DISPLAY_ENV="VERBOSE",
                **given,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            shown[len(shown)] = re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)[-1]
        self.assertEqual((shown[0], shown[1]), ("1000", "77"))
        self.assertGreater(int(shown[2]), 1000)
        launched = program.call(program.ROOT / "launch/ranks", 1, "printenv", "GOMP_SPINCOUNT")
        self.assertEqual(launched.stdout.split(), ["1000"])


if __name__ == "__main__":
    program.main()
