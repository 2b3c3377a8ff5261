"""Every placement trains the same model, and moves on every link what the planner's formulas predict.

Two ranks count as a node, so four ranks of this machine are two nodes.
"""

import program

WORDS = ("replicated", "node", "global")
# Parameters, gradients, optimizer state: each is spread at least as widely as the one before.
ALLOWED = [(p, g, o) for p in WORDS for g in WORDS for o in WORDS
           if WORDS.index(p) <= WORDS.index(g) <= WORDS.index(o)]
NODES, RANKS_PER_NODE = 2, 2


def keys_of(placement):
    return dict(zip(("placement__parameters", "placement__gradients", "placement__optimizer"), placement))


class Placements(program.Scenario):
    def train_placed(self, placement, **keys):
        return self.train(ranks=NODES * RANKS_PER_NODE, exchange__ranks_per_node=RANKS_PER_NODE, state="-".join(placement),
                          **{"train__steps": 6, **keys_of(placement), **keys})

    def usual_of(self, gradients, **keys):
        """The summary of a run with the default placements, but with replicated gradients if `gradients` says so: these are added
        up in another order, which gives other bits."""
        gradients = "replicated" if gradients == "replicated" else "node"
        name = gradients, *sorted(keys.items())
        if name not in self.usual:
            self.usual[name] = self.train(state=f"usual-{len(self.usual)}", placement__gradients=gradients, **keys)
        return self.usual[name]

    def setUp(self):
        super().setUp()
        self.usual = {}

    def assert_formulas(self, summary):
        """Checks that every link's bytes are within 3 % of the planner's formulas."""
        for link, formulas in summary["formula_bytes_per_parameter"].items():
            for kind, formula in formulas.items():
                measured = summary["bytes_per_parameter"][link][kind]
                self.assertLessEqual(abs(measured - formula), 0.03 * formula + 1e-9, f"{link} {kind}: {measured}, {formula}")

    def assert_volumes(self, summary, placement, size):
        """Checks the formulas for 2 nodes of 2 ranks by hand; `size`: bytes of a parameter and of a dense gradient."""
        parameters, gradients, optimizer = placement
        passes = 2 if parameters == "global" else 1
        copies = {"replicated": 4, "node": 2, "global": 1}[optimizer]
        wanted = {
            ("host_link", "gradients"): copies * size * {"replicated": NODES * RANKS_PER_NODE, "node": NODES, "global": 1}[gradients],
            ("host_link", "parameters"): copies * size,
            ("device_internal", "read"): copies * 12,
            # Each node, or each of its ranks, sends a payload, or a dense sum, to the other node's owner, or to owners in both.
            ("network", "gradients"): size * (1 if gradients == "global" else (1 if optimizer == "global" else 2)
                                              * (RANKS_PER_NODE if gradients == "replicated" else 1)),
            # Parameters spread over all ranks are sent for forward and for backward, else once.
            ("network", "parameters"): passes * size if optimizer == "global" else 0,
            # Inside the nodes: to the ranks that keep their own copies of the received parameters.
            ("node", "parameters"): 0 if parameters == "node" or optimizer == "replicated" else passes * size * NODES,
        }
        for (link, kind), value in wanted.items():
            measured = summary["bytes_per_parameter"][link][kind]
            self.assertLessEqual(abs(measured - value), 0.03 * value, f"{link} {kind}: {measured}, {value}")

    def test_every_placement_gives_the_same_losses_and_the_formulas_traffic(self):
        keys = {"model__dtype": "fp32", "exchange__densify": "never", "csd__slots": 4}  # so few keep no state
        run = {"ranks": 4, "exchange__ranks_per_node": 2, "train__steps": 6, **keys}
        usual = self.train(**run)
        self.assertEqual(usual["placement"]["gradients"], "node")
        self.assertEqual(len(ALLOWED), 10)
        # Every word in every place where it is allowed.
        for placement in program.sweep(ALLOWED, *(ALLOWED.index(one) for one in (
                ("replicated",) * 3, ("replicated", "node", "global"), ("node",) * 3, ("node", "global", "global"), ("global",) * 3))):
            with self.subTest(placement):
                summary = self.train_placed(placement, **keys)
                self.assertEqual(summary["nodes"], NODES)
                self.assert_close(summary["losses"], usual["losses"], 1e-4)
                self.assert_formulas(summary)
                self.assert_volumes(summary, placement, 4)
                if placement[1] == "node":  # the same sums, so the same bits
                    self.assert_same_bits(summary, usual)
                elif placement[1] == "replicated":
                    self.assert_same_bits(summary, self.usual_of("replicated", **run))

    def test_state_that_slots_keep_is_read_in_the_first_step_alone(self):
        kept = self.train_placed(("replicated",) * 3)
        self.assertEqual(kept["placement"]["gradients"], "replicated")
        inside = kept["bytes_per_parameter"]["device_internal"]
        self.assertAlmostEqual(inside["read"], inside["write"] / kept["steps"], delta=0.01)
        self.assertAlmostEqual(kept["formula_bytes_per_parameter"]["device_internal"]["read"], 0, delta=0.01)
        self.assert_same_bits(kept, self.train_placed(("replicated",) * 3, csd__slots=4))

    def test_with_codes_and_deltas(self):
        keys = {"mode": "su+o+c", "compress__codec": "q4", "gather__codec": "delta", "csd__state": "compact"}
        run = {"ranks": 4, "exchange__ranks_per_node": 2, "train__steps": 6, **keys}
        usual = self.usual_of("node", **run)
        for placement in program.sweep((("replicated", "node", "node"), ("node", "node", "global"), ("node", "node", "node"),
                                        ("replicated", "replicated", "replicated")), 1, 3):
            with self.subTest(placement):
                summary = self.train_placed(placement, **keys)
                self.assert_same_bits(summary, self.usual_of(placement[1], **run))
                self.assertAlmostEqual(summary["bytes_per_parameter"]["network"]["gradients"],
                                       summary["formula_bytes_per_parameter"]["network"]["gradients"], delta=0.01)
        # Encoded once, after the sum over all ranks: other bits, but the same learning.
        summary = self.train_placed(("node", "global", "global"), **keys)
        self.assert_close(summary["losses"], usual["losses"], 2e-2)
        self.assertAlmostEqual(summary["bytes_per_parameter"]["host_link"]["gradients"], 0.53, delta=0.01)
        self.assertAlmostEqual(summary["bytes_per_parameter"]["network"]["gradients"], 2, delta=0.01)

    def test_parameters_over_all_ranks_take_memory_for_a_ranks_own_tiles_alone(self):
        whole = self.train_placed(("replicated", "global", "global"), train__steps=2)
        parts = self.train_placed(("global", "global", "global"), train__steps=2, flags=["--sample", 5])
        self.assert_same_bits(parts, whole)
        self.assertGreaterEqual(whole["placement"]["vector_bytes"], 8 * 131072)
        self.assertLessEqual(parts["placement"]["vector_bytes"], 2 * 131072)  # 2 of 8 tiles

    def test_unequal_nodes_and_devices(self):
        run = {"ranks": 3, "exchange__ranks_per_node": 2, "train__steps": 6, "csd__per_rank": "[2,1,3]"}
        for placement in program.sweep((("node", "node", "node"), ("node", "node", "global"), ("replicated", "replicated", "replicated"),
                                        ("global", "global", "global")), 0, 3):
            with self.subTest(placement):
                summary = self.train(**run, **keys_of(placement))
                self.assert_same_bits(summary, self.usual_of(placement[1], **run))
                self.assertIsNone(summary["formula_bytes_per_parameter"])

    def test_base_updates_copies_on_hosts(self):
        usual = self.train(ranks=4, exchange__ranks_per_node=2, train__steps=4)
        base = self.train_placed(("node", "node", "node"), mode="base", train__steps=4)
        self.assert_same_bits(base, usual)

    def test_stopped_and_killed_runs_go_on_bit_identically(self):
        keys = {"train__steps": 8, "csd__per_rank": 2}
        for placement in program.sweep((("node", "node", "node"), ("node", "node", "global"), ("replicated", "replicated", "replicated"),
                                        ("global", "global", "global")), 0, 3):
            with self.subTest(placement):
                usual = self.usual_of(placement[1], ranks=4, exchange__ranks_per_node=2, **keys)
                self.train_placed(placement, train__stop_at=3, **keys)
                again = self.train_placed(placement, flags=["--resume"], **keys)
                self.assertEqual(again["losses"], usual["losses"][3:])
                self.assertEqual(again["masters_xxh3"], usual["masters_xxh3"])
                # A rank writes this many of the 8 tiles in a step.
                writes = {"global": 2, "node": 4, "replicated": 8}[placement[2]]
                for fault in (f"rank=2 phase=mid_write count={4 * writes + 1}", "rank=1 phase=before_commit count=5"):
                    arguments = self.arguments(flags=["--fresh"], state="-".join(placement), exchange__ranks_per_node=2,
                                               **keys_of(placement), **keys)
                    killed = program.run(4, *arguments, fault=fault)
                    self.assertEqual(killed.returncode, 137, killed.stderr)
                    again = self.train_placed(placement, flags=["--resume"], **keys)
                    self.assertGreater(again["first_step"], 1)
                    self.assertEqual(again["losses"], usual["losses"][again["first_step"] - 1:])
                    self.assertEqual(again["masters_xxh3"], usual["masters_xxh3"])

    def test_another_placement_goes_on_from_the_checkpoint_and_exports_the_same(self):
        keys = {"train__steps": 6}
        exports = set()
        for placement in (("node", "node", "node"), ("replicated", "replicated", "replicated")):
            gradients = placement[1]
            usual = self.usual_of(gradients, ranks=4, exchange__ranks_per_node=2, **keys)
            first = self.train_placed(placement, train__stop_at=3, **keys)
            self.assertEqual(program.run(0, "inspect", first["checkpoint"]).returncode, 0)
            for other in program.sweep((("replicated", gradients, "global"), ("replicated", gradients, "node")), gradients == "replicated"):
                with self.subTest(placement, other=other):
                    again = self.train(ranks=4, exchange__ranks_per_node=2, flags=["--from", first["checkpoint"], "--fresh"],
                                       state="other", **keys_of(other), **keys)
                    self.assertEqual(again["losses"], usual["losses"][3:])
                    self.assertEqual(again["masters_xxh3"], usual["masters_xxh3"])
                    exported = self.folder / "model.h5"
                    exported.unlink(missing_ok=True)
                    program.succeed(0, "export", again["checkpoint"], exported)
                    exports.add(exported.stat().st_size)
        self.assertEqual(len(exports), 1)

    def test_dense_sums_of_owners_follow_the_rule(self):
        """2 payloads of q4 are smaller than a dense sum; 2 dense ones are larger, and so are 4 of q4, one of
        each rank."""
        q4 = {"mode": "su+o+c", "compress__codec": "q4"}
        flat = {"placement__gradients": "replicated"}
        for number, (keys, densify, handed) in enumerate((
                ({}, "auto", 2), ({}, "never", 4), (q4, "auto", 2 * 0.53), (q4, "always", 2), (q4 | flat, "auto", 2),
                (q4 | flat, "never", 4 * 0.53))):
            with self.subTest(densify, **keys):
                summary = self.train(ranks=4, exchange__ranks_per_node=2, train__steps=6, exchange__densify=densify,
                                     csd__slots=4, state=f"densify-{number}", **keys)
                self.assertAlmostEqual(summary["bytes_per_parameter"]["host_link"]["gradients"], handed, delta=0.02 * handed)
                self.assertEqual(summary["placement"]["dense_sums"], handed == 2)
                self.assert_formulas(summary)
                if densify == "never":
                    self.assert_close(summary["losses"], last["losses"], 2e-3)
                last = summary
        runs = [self.train(ranks=4, exchange__ranks_per_node=2, train__steps=6, mode=mode, state=mode)
                for mode in ("base", "su", "su+o")]
        for one in runs[1:]:
            self.assert_same_bits(one, runs[0])

    def test_a_run_says_what_owners_hand_on_and_shows_the_formulas(self):
        arguments = self.arguments(exchange__ranks_per_node=2, train__steps=2, placement__optimizer="node")
        done = program.succeed(4, *arguments, "--traffic")
        self.assertIn("exchange.densify = auto", done.stdout)
        self.assertIn("replicated, node, node", done.stdout)


if __name__ == "__main__":
    program.main()
