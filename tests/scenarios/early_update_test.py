"""Updates that begin in backward: without clipping, or clipped by the previous step's norm. A gradient
that turns out not to be finite after devices have begun leaves no trace."""

import json

import program

STEPS = 6
# The destinations of new parameters: to vectors, as deltas, to a vector shared by a node, or only to owners, each of
# which is a node.
WAYS = {
    "dense": {},
    "delta": {"gather__codec": "delta"},
    "node": {"placement__parameters": "node"},
    "global": {"placement__parameters": "global", "placement__gradients": "global", "exchange__ranks_per_node": 1},
}


class EarlyUpdate(program.Scenario):
    def run_of(self, state, fault="", ranks=2, flags=(), **keys):
        """Makes a run with small subgroups; returns its summary."""
        summary = self.folder / f"{state}.json"
        keys = {"train__steps": STEPS, "csd__subgroup_tiles": 1, "train__clip_norm": 0, **keys}
        done = program.run_in_turn(
            ranks, *self.arguments(state=state, flags=["--json", summary, *flags], **keys), fault=fault
        )
        self.assertEqual(done.returncode, 0, f"{done.args}\n{done.stdout}\n{done.stderr}")
        return json.loads(summary.read_text())

    def test_a_gradient_that_is_not_finite_is_undone(self):
        # The gradient of block 0, the last that rank 1 reaches, in step 3. The model has 2 layers, and so 4 blocks.
        fault = "rank=1 phase=gradient count=12 action=fail"
        cases = [
            (name, way, clipping)
            for name, way in WAYS.items()
            for clipping in ({}, {"train__clip_norm": 1, "train__clipping": "delayed"})
        ]
        for name, way, clipping in program.sweep(cases, 0, 3, 4, 7):
            with self.subTest(name, **clipping):
                late, early = (
                    self.run_of(f"{mode}-{name}-{len(clipping)}", fault, mode=mode, **way, **clipping)
                    for mode in ("su", "su+o")
                )
                self.assertEqual(late["skipped_steps"], 1)
                self.assertEqual(early["skipped_steps"], 1)
                self.assert_same_bits(early, late)

    def test_a_run_killed_behind_an_undone_update_goes_on_from_the_step_before(self):
        whole = self.run_of("whole", "rank=1 phase=gradient count=12 action=fail", mode="su+o")
        stopped = self.run_of("parts", "rank=1 phase=gradient count=12 action=fail", mode="su+o", train__stop_at=3)
        rest = self.run_of("parts", mode="su+o", flags=["--resume"])
        self.assertEqual(stopped["losses"] + rest["losses"], whole["losses"])
        self.assertEqual(rest["masters_xxh3"], whole["masters_xxh3"])

    def test_a_run_killed_in_the_undo_of_a_wrong_guess_goes_on_with_its_bits(self):
        # A high learning rate leads to a step with a large norm, which clips, after two that do not.
        clipping = {"train__learning_rate": 0.1, "train__clip_norm": 4, "model__vocabulary": 256}
        late = self.run_of("late", mode="su", **clipping)
        early = self.run_of("early", mode="su+o", **clipping)
        self.assert_same_bits(early, late)
        self.assertEqual((late["clip_guesses"], late["clip_misses"]), (0, 0))
        self.assertGreater(early["clip_misses"], 0)
        # Killed when the wrong update is undone, and when the right one is written.
        for rank, phase, count in ((1, "after_undo", 1), (0, "before_commit", 4)):
            with self.subTest(phase):
                keys = {"train__steps": STEPS, "csd__subgroup_tiles": 1, "mode": "su+o", **clipping}
                done = program.run(
                    2, *self.arguments(state=phase, **keys), fault=f"rank={rank} phase={phase} count={count}"
                )
                self.assertNotEqual(done.returncode, 0)
                rest = self.run_of(phase, flags=["--resume"], **keys)
                self.assertEqual(rest["masters_xxh3"], late["masters_xxh3"])
                self.assertEqual(rest["losses"], late["losses"][-len(rest["losses"]) :])

    def test_updates_begin_before_backward_ends(self):
        # Gradients cross a slow link: finished ones are updated while the next ones cross.
        for keys in ({}, {"train__clip_norm": 1, "train__clipping": "delayed"}):
            with self.subTest(**keys):
                self.assert_seen(lambda: self.updates_in_backward(keys))

    def updates_in_backward(self, keys):
        trace = self.folder / "trace.json"
        self.run_of(
            "traced",
            ranks=1,
            train__stop_at=3,
            mode="su+o",
            model__layers=4,
            link__host_gb_s=0.001,
            flags=["--trace", trace, "--fresh"],
            **keys,
        )
        spans = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
        updates = [s["ts"] for s in spans if s["name"] == "update" and s["args"]["step"] == 3]
        backward = [s["ts"] + s["dur"] for s in spans if s["name"] == "backward" and s["args"]["step"] == 3]
        return min(updates) < max(backward)


if __name__ == "__main__":
    program.main()
