"""Every placement trains the same model, and moves on every link what the planner's formulas predict.

Two ranks count as a node, so eight ranks of this machine are four nodes, and four are two.
"""

import program

RANKS, RANKS_PER_NODE = 8, 2
NODES = RANKS // RANKS_PER_NODE
# How many ranks hold the parameters, sum their gradients, and hold the optimizer state: each a part of the next.
SIZES = (1, 2, 4, 8)
ALL = [(p, g, o) for p in SIZES for g in SIZES for o in SIZES if p <= g <= o]


def keys_of(placement):
    return dict(zip(("placement__parameters", "placement__gradients", "placement__optimizer"), placement))


def network_of(ranks):
    """Nodes of a group."""
    return max(ranks // RANKS_PER_NODE, 1)


class Placements(program.Scenario):
    def train_placed(self, placement, ranks=4, **keys):
        return self.train(
            ranks=ranks,
            **{
                "exchange__ranks_per_node": RANKS_PER_NODE,
                "state": "-".join(map(str, placement)),
                "train__steps": 6,
                **keys_of(placement),
                **keys,
            },
        )

    def usual_of(self, gradients, **keys):
        """The summary of a run with the default placements, but with gradients that as many ranks sum: these are added
        up in an order of their own, which gives other bits."""
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
                self.assertLessEqual(
                    abs(measured - formula), 0.03 * formula + 1e-9, f"{link} {kind}: {measured}, {formula}"
                )

    def assert_volumes(self, summary, placement, size):
        """Checks the formulas by hand; `size`: bytes of a parameter, of a dense gradient and of a payload."""
        parameters, gradients, optimizer = placement
        copies, payloads = RANKS // optimizer, RANKS // gradients
        of_parameters, of_gradients, of_optimizer = map(network_of, placement)
        passes = 2 if of_parameters > 1 else 1
        wanted = {
            ("host_link", "gradients"): copies * payloads * size,
            ("host_link", "parameters"): copies * size,
            ("device_internal", "read"): copies * 12,
            # The nodes of a group send each other dense sums; each group's payload goes to a node of each copy of the
            # state.
            ("network", "gradients"): size
            * (NODES - NODES / of_gradients + payloads * (NODES - of_gradients) / of_optimizer),
            # Parameters go to the copies of the parameters within each copy of the state; then, between the nodes of a
            # copy of the parameters, for forward and for backward.
            ("network", "parameters"): size
            * (NODES / of_parameters - NODES / of_optimizer + 2 * (NODES - NODES / of_parameters)),
            # Inside the nodes: to the ranks that have their own vectors.
            ("node", "parameters"): 0 if parameters == 2 or optimizer == 1 else passes * size * NODES,
        }
        for (link, kind), value in wanted.items():
            measured = summary["bytes_per_parameter"][link][kind]
            self.assertLessEqual(abs(measured - value), 0.03 * value, f"{link} {kind}: {measured}, {value}")

    def test_every_placement_gives_the_same_losses_and_the_formulas_traffic(self):
        keys = {
            "model__dtype": "fp32",
            "exchange__densify": "never",
            "csd__slots": 4,
            "csd__per_rank": 1,
        }  # so few keep no state
        run = {"ranks": RANKS, "exchange__ranks_per_node": RANKS_PER_NODE, "train__steps": 6, **keys}
        usual = self.train(**run)
        self.assertEqual([usual["placement"][key] for key in ("parameters", "gradients", "optimizer")], [1, 2, 8])
        self.assertEqual(len(ALL), 20)
        # Every size in every place.
        for placement in program.sweep(
            ALL, *(ALL.index(one) for one in ((1, 1, 1), (1, 4, 4), (2, 4, 8), (4, 4, 8), (4, 8, 8)))
        ):
            with self.subTest(placement):
                summary = self.train_placed(placement, **run)
                self.assertEqual(summary["nodes"], NODES)
                self.assert_close(summary["losses"], usual["losses"], 1e-4)
                self.assert_formulas(summary)
                self.assert_volumes(summary, placement, 4)
                # The owner adds up what nodes send in the order in which a rank of a group of all does.
                self.assert_same_bits(summary, usual if placement[1] in (2, 8) else self.usual_of(placement[1], **run))

    def test_each_placement_goes_on_from_the_state_of_another(self):
        keys = {"ranks": RANKS, "exchange__ranks_per_node": RANKS_PER_NODE, "csd__per_rank": 1}
        for gradients in program.sweep(SIZES, 2):
            ways = program.sweep([one for one in ALL if one[1] == gradients], 0, 3, 5 if gradients == 2 else 1)
            steps = len(ways) + 1
            usual = self.usual_of(gradients, train__steps=steps, **keys)
            for number, placement in enumerate(ways):
                with self.subTest(placement):
                    flags = ["--resume"] if number else []
                    summary = self.train_placed(
                        placement,
                        state="elastic",
                        flags=flags,
                        train__steps=steps,
                        train__stop_at=number + 1 if number + 1 < len(ways) else 0,
                        **keys,
                    )
                    self.assertEqual(summary["first_step"], number + 1)
                    self.assertEqual(summary["losses"], usual["losses"][number : number + len(summary["losses"])])
            self.assertEqual(summary["masters_xxh3"], usual["masters_xxh3"])

    def test_groups_that_are_a_part_of_a_node(self):
        """Two nodes of four ranks: two ranks share a vector, encode one sum, or hold one copy of the state."""
        keys = {
            "ranks": RANKS,
            "exchange__ranks_per_node": 4,
            "train__steps": 4,
            "csd__per_rank": 1,
            "csd__slots": 4,
            "exchange__densify": "never",
        }
        usual = self.usual_of(2, **keys)
        for placement in program.sweep(((2, 2, 2), (2, 2, 8), (1, 2, 4), (2, 4, 4)), 1, 2):
            with self.subTest(placement):
                summary = self.train(state="part", flags=["--fresh"], **keys, **keys_of(placement))
                self.assert_formulas(summary)
                self.assert_same_bits(summary, usual if placement[1] == 2 else self.usual_of(4, **keys))

    def test_state_that_slots_keep_is_read_in_the_first_step_alone(self):
        kept = self.train_placed((1,) * 3)
        self.assertEqual(kept["placement"]["gradients"], 1)
        inside = kept["bytes_per_parameter"]["device_internal"]
        self.assertAlmostEqual(inside["read"], inside["write"] / kept["steps"], delta=0.01)
        self.assertAlmostEqual(kept["formula_bytes_per_parameter"]["device_internal"]["read"], 0, delta=0.01)
        self.assert_same_bits(kept, self.train_placed((1,) * 3, csd__slots=4))

    def test_with_codes_and_deltas(self):
        keys = {"mode": "su+o+c", "compress__codec": "q4", "gather__codec": "delta", "csd__state": "compact"}
        run = {"ranks": 4, "exchange__ranks_per_node": 2, "train__steps": 6, **keys}
        usual = self.usual_of(2, **run)
        for placement in program.sweep(((1, 2, 2), (2, 2, 4), (2, 2, 2), (1, 1, 1)), 1, 3):
            with self.subTest(placement):
                summary = self.train_placed(placement, **keys)
                self.assert_same_bits(summary, self.usual_of(placement[1], **run))
                self.assertAlmostEqual(
                    summary["bytes_per_parameter"]["network"]["gradients"],
                    summary["formula_bytes_per_parameter"]["network"]["gradients"],
                    delta=0.01,
                )
        # Encoded once, after the sum over all ranks: other bits, but the same learning.
        summary = self.train_placed((2, 4, 4), **keys)
        self.assert_close(summary["losses"], usual["losses"], 2e-2)
        self.assertAlmostEqual(summary["bytes_per_parameter"]["host_link"]["gradients"], 0.53, delta=0.01)
        self.assertAlmostEqual(summary["bytes_per_parameter"]["network"]["gradients"], 2, delta=0.01)

    def test_parameters_over_all_ranks_take_memory_for_a_ranks_own_tiles_alone(self):
        whole = self.train_placed((1, 4, 4), train__steps=2)
        parts = self.train_placed((4, 4, 4), train__steps=2, flags=["--sample", 5])
        self.assert_same_bits(parts, whole)
        self.assertGreaterEqual(whole["placement"]["vector_bytes"], 8 * 131072)
        self.assertLessEqual(parts["placement"]["vector_bytes"], 2 * 131072)  # 2 of 8 tiles

    def test_unequal_nodes_and_devices(self):
        run = {"ranks": 3, "exchange__ranks_per_node": 2, "train__steps": 6, "csd__per_rank": "[2,1,3]"}
        for placement in program.sweep(
            (("node",) * 3, ("node", "node", "global"), ("replicated",) * 3, ("global",) * 3), 0, 3
        ):
            with self.subTest(placement):
                summary = self.train(**run, **keys_of(placement))
                self.assert_same_bits(summary, self.usual_of(placement[1], **run))
                self.assertIsNone(summary["formula_bytes_per_parameter"])

    def test_base_updates_copies_on_hosts(self):
        usual = self.train(ranks=4, exchange__ranks_per_node=2, train__steps=4)
        base = self.train_placed((2, 2, 2), mode="base", train__steps=4)
        self.assert_same_bits(base, usual)

    def test_stopped_and_killed_runs_go_on_bit_identically(self):
        keys = {"train__steps": 8, "csd__per_rank": 2}
        # A rank writes this many of the 8 tiles in a step; a kill comes in the fifth, in a write or before the commit.
        cases = [
            (placement, fault)
            for placement, writes in (((2, 2, 2), 4), ((2, 2, 4), 2), ((1, 1, 1), 8), ((4, 4, 4), 2))
            for fault in (f"rank=2 phase=mid_write count={4 * writes + 1}", "rank=1 phase=before_commit count=5")
        ]
        for placement, fault in program.sweep(cases, 0, 7):
            with self.subTest(placement, fault=fault):
                usual = self.usual_of(placement[1], ranks=4, exchange__ranks_per_node=2, **keys)
                self.train_placed(placement, flags=["--fresh"], train__stop_at=3, **keys)
                again = self.train_placed(placement, flags=["--resume"], **keys)
                self.assertEqual(again["losses"], usual["losses"][3:])
                self.assertEqual(again["masters_xxh3"], usual["masters_xxh3"])
                arguments = self.arguments(
                    flags=["--fresh"],
                    state="-".join(map(str, placement)),
                    exchange__ranks_per_node=2,
                    **keys_of(placement),
                    **keys,
                )
                killed = program.run(4, *arguments, fault=fault)
                self.assertEqual(killed.returncode, 137, killed.stderr)
                again = self.train_placed(placement, flags=["--resume"], **keys)
                self.assertGreater(again["first_step"], 1)
                self.assertEqual(again["losses"], usual["losses"][again["first_step"] - 1 :])
                self.assertEqual(again["masters_xxh3"], usual["masters_xxh3"])

    def test_another_placement_goes_on_from_the_checkpoint_and_exports_the_same(self):
        keys = {"train__steps": 6}
        exports = set()
        for placement in ((2, 2, 2), (1, 1, 1)):
            gradients = placement[1]
            usual = self.usual_of(gradients, ranks=4, exchange__ranks_per_node=2, **keys)
            first = self.train_placed(placement, train__stop_at=3, **keys)
            self.assertEqual(program.run(0, "inspect", first["checkpoint"]).returncode, 0)
            for other in program.sweep(((1, gradients, 4), (1, gradients, 2)), gradients == 1):
                with self.subTest(placement, other=other):
                    again = self.train(
                        ranks=4,
                        exchange__ranks_per_node=2,
                        flags=["--from", first["checkpoint"], "--fresh"],
                        state="other",
                        **keys_of(other),
                        **keys,
                    )
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
        flat = {"placement__gradients": 1}
        for number, (keys, densify, handed) in enumerate(
            (
                ({}, "auto", 2),
                ({}, "never", 4),
                (q4, "auto", 2 * 0.53),
                (q4, "always", 2),
                (q4 | flat, "auto", 2),
                (q4 | flat, "never", 4 * 0.53),
            )
        ):
            with self.subTest(densify, **keys):
                summary = self.train(
                    ranks=4,
                    exchange__ranks_per_node=2,
                    train__steps=6,
                    exchange__densify=densify,
                    csd__slots=4,
                    state=f"densify-{number}",
                    **keys,
                )
                self.assertAlmostEqual(
                    summary["bytes_per_parameter"]["host_link"]["gradients"], handed, delta=0.02 * handed
                )
                self.assertEqual(summary["placement"]["dense_sums"], handed == 2)
                self.assert_formulas(summary)
                if densify == "never":
                    self.assert_close(summary["losses"], last["losses"], 2e-3)
                last = summary

    def test_a_run_says_what_owners_hand_on_and_shows_the_formulas(self):
        arguments = self.arguments(exchange__ranks_per_node=2, train__steps=2, placement__optimizer=2)
        done = program.succeed(4, *arguments, "--traffic")
        self.assertIn("exchange.densify = auto", done.stdout)
        self.assertIn("  1, 2, 2  ", done.stdout)


if __name__ == "__main__":
    program.main()
