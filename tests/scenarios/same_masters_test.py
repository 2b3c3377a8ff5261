"""Tests that what must not change the masters does not: modes, devices, formats of what is gathered, storage nodes and
times give the bits of mode su on one device per rank; and every link carries the bytes that the design states."""

import json
import shutil

import program

STEPS = 6
# So few slots keep no state, so that every step reads and writes all of it, 12 bytes of a parameter each way.
FEW = {"csd__slots": 4}
# Keys that decide no bits; the reference has the value here, or the default.
FREE = {
    "mode": "su",
    "csd__per_rank": 1,
    "csd__subgroup_tiles": 1,
    "csd__slots": None,
    "csd__speed": None,
    "csd__path": None,
    "csd__durability": None,
    "csd__tiers__memory": None,
    "csd__storage_ranks": None,
    "gather__codec": None,
    "placement__parameters": None,
    "exchange__ranks_per_node": None,
}
PAYLOAD = {"dense": None, "topk": 4 * 656 / 65536, "q8": 1.03125, "q4": 0.53125}

FP16_SCALED = {"model__dtype": '"fp16"', "train__loss_scale": 4e9, "train__steps": 40}
UNCLIPPED = {"train__clip_norm": 0}
MATRICES = {"train__decay": "matrices", "train__weight_decay": 0.5, "csd__state": "compact"}
TOPK = {"mode": "su+o+c", "compress__codec": "topk", "placement__gradients": "replicated", "csd__per_rank": 2}
GLOBAL = {"placement__parameters": "global", "placement__gradients": "global", "exchange__ranks_per_node": 1}
DELTA_NODE = {"gather__codec": "delta", "placement__parameters": "node"}
SPLIT_DEVICES = {"csd__per_rank": "[2,0]", "csd__subgroup_tiles": 3}


# Each a run that has the bits of its reference: every value of every key, in modes that treat it differently, and not
# every pair of keys.
CASES = [
    # Modes, whose bytes are checked; in fp32, too.
    *({"mode": mode, "csd__per_rank": 2, **FEW} for mode in ("base", "su", "su+o")),
    {"mode": "su+o+c", "compress__codec": "dense", "csd__per_rank": 2, "flags": "--trace"},
    *({"mode": mode, "model__dtype": "fp32", "csd__per_rank": 2, **FEW} for mode in ("base", "su+o")),
    # Devices, their speeds, and where state lies.
    *({"mode": "su+o", "csd__per_rank": devices} for devices in ("5", "[3,0]")),
    {"mode": "su+o", "csd__per_rank": 2, "csd__speed": "[1.8,3.0,1.0,2.2]"},
    {"mode": "su+o", "csd__speed": '"auto"', "csd__path": "disk and memory"},
    # A run repeats, and threads that share the tiles give the same bits.
    *({"ranks": ranks, "csd__subgroup_tiles": 2} for ranks in (1, 3)),
    *(
        {"ranks": 1, "threads": 3, "train__steps": 3, "mode": mode, "csd__per_rank": devices, "csd__subgroup_tiles": 2}
        for mode, devices in (("base", 3), ("su+o", 4))
    ),
    # State formats, with deltas; q8 in mode base is below.
    *({"csd__state": state, "gather__codec": "delta", **SPLIT_DEVICES} for state in ("fp32", "bf16", "q8", "compact")),
    *({"csd__state": state, "mode": "base", "csd__per_rank": 2} for state in ("bf16", "compact")),
    {"csd__state": "compact", "model__dtype": "fp16", "gather__codec": "delta"},
    {"mode": "su", "csd__per_rank": 2, "gather__codec": "delta", **FEW},
    {"mode": "su+o+c", "compress__codec": "topk", "ranks": 3, "csd__per_rank": "[2,0,1]", "gather__codec": "delta"},
    # Codecs: the same whatever the devices.
    *(
        {"mode": "su+o+c", "compress__codec": "q4", "compress__rounding": rounding, "csd__per_rank": devices}
        for rounding, devices in (("nearest", 2), ("stochastic", 3))
    ),
    # Updates that begin in backward, as nothing is clipped, with each way of new parameters.
    *(
        {**UNCLIPPED, "mode": "su+o", **way, **FEW}
        for way in ({}, {"gather__codec": "delta"}, {"placement__parameters": "node"}, GLOBAL)
    ),
    {**UNCLIPPED, "mode": "su+o"},
    # State on a drive that no power cut has to leave shares spare places.
    *(
        {**keys, "mode": "su+o", "csd__durability": durability, "csd__per_rank": 2}
        for durability, keys in (
            ("none", FEW),
            ("checkpoint", {}),
            ("none", {**UNCLIPPED, "gather__codec": "delta"}),
            ("none", {"csd__storage_ranks": 1, "csd__state": "compact"}),
        )
    ),
    # Decay of one of two parameter groups.
    {**MATRICES, "mode": "su+o", "csd__per_rank": 3},
    {**MATRICES, "mode": "su", "csd__subgroup_tiles": 4},
    # Ranks that hold devices and compute nothing.
    {"mode": "su", "csd__storage_ranks": 1},
    {"mode": "base", "csd__storage_ranks": 2},
    *({"mode": "su+o", "csd__storage_ranks": storage, **DELTA_NODE} for storage in (1, 2)),
    {**TOPK, "csd__storage_ranks": 1, "csd__speed": '"auto"'},
    {"mode": "su+o", "csd__storage_ranks": 2, "csd__per_rank": "[1,0,2,1]"},
    # Steps that are skipped.
    *({**FP16_SCALED, "mode": "su+o", **keys} for keys in ({"gather__codec": "delta"}, {"csd__storage_ranks": 1})),
    # Optimizers.
    *(
        {
            "train__optimizer": optimizer,
            "train__learning_rate": rate,
            "csd__state": "q8",
            "train__steps": 20,
            "mode": mode,
            "csd__per_rank": 2,
        }
        for optimizer, rate, mode in (
            ("adamw", 2e-3, "su+o"),
            ("adam", 2e-3, "base"),
            ("sgd", 0.1, "base"),
            ("adagrad", 1e-2, "base"),
            ("lion", 5e-4, "base"),
        )
    ),
]


def expected_bytes(keys):
    """Bytes per parameter of each link, by the design, of a run whose slots keep no state."""
    element = 4 if keys.get("model__dtype") == "fp32" else 2
    if keys["mode"] == "base":
        host = {"state_read": 12, "state_write": 12, "gradients_read": 4, "gradients_write": 4}
        return {"host_link": host, "device_internal": {"read": 0, "write": 0}}
    payload = PAYLOAD[keys.get("compress__codec", "dense")] or element
    return {
        "host_link": {
            "state_read": 0,
            "state_write": 0,
            "gradients_read": 0,
            "gradients": payload,
            # Deltas never take more than the dense parameters, but for a message's header and table.
            **({} if "gather__codec" in keys else {"parameters": element}),
        },
        "device_internal": {"read": 12, "write": 12},
    }


class SameMasters(program.Scenario):
    def setUp(self):
        super().setUp()
        self.references = {}
        self.addCleanup(shutil.rmtree, f"/dev/shm/{self.folder.name}", ignore_errors=True)

    def run_of(self, keys):
        keys = {"train__steps": STEPS, **keys}
        threads, ranks = keys.pop("threads", 1), keys.pop("ranks", 2) + keys.get("csd__storage_ranks", 0)
        flags = ["--fresh", *([keys.pop("flags"), self.folder / "trace.json"] if "flags" in keys else [])]
        if "csd__path" in keys:
            keys["csd__path"] = f'["{self.folder / "disk"}","/dev/shm/{self.folder.name}"]'
        return self.train(ranks=ranks, threads=threads, flags=flags, **keys)

    def reference_of(self, keys):
        """The run with the same bits in mode su on one device per rank, or with codes in their mode."""
        fixed = {key: value for key, value in keys.items() if key not in FREE and key != "flags"}
        is_coded = keys.get("mode") == "su+o+c" and keys.get("compress__codec") != "dense"
        fixed |= {key: value for key, value in FREE.items() if value is not None}
        fixed |= {"mode": "su+o+c"} if is_coded else {"compress__codec": "dense"}
        if keys.get("placement__gradients") == "global":
            fixed["exchange__ranks_per_node"] = 1
        name = json.dumps(fixed, sort_keys=True)
        if name not in self.references:
            self.references[name] = self.run_of(fixed)
        return self.references[name]

    def assert_links(self, links, wanted, padding):
        for link, kinds in wanted.items():
            for kind, value in kinds.items():
                with self.subTest(link=link, kind=kind):
                    self.assert_bytes(links[link][kind], value, padding)

    def test_every_case_has_the_masters_of_its_reference(self):
        for keys in CASES:
            keys = {"mode": "su+o", **keys}
            with self.subTest(**keys):
                summary, reference = self.run_of(keys), self.reference_of(keys)
                self.assert_same_bits(summary, reference)
                links, dense = summary["bytes_per_parameter"], reference["bytes_per_parameter"]
                if FEW.items() <= keys.items():
                    self.assert_links(links, expected_bytes(keys), program.padding_of(summary))
                if "gather__codec" in keys and "csd__storage_ranks" not in keys:
                    self.assertLessEqual(links["host_link"]["parameters"], 1.01 * dense["host_link"]["parameters"])
                if FP16_SCALED.items() <= keys.items():
                    self.assertTrue(0 < summary["skipped_steps"] < 30)
                    self.assertLess(summary["losses"][-1], summary["losses"][0])
                if "train__optimizer" in keys:
                    self.assertLess(summary["heldout_loss"], summary["losses"][0] - 0.5)
                self.assertEqual("lanes" in summary, "flags" in keys)

    def test_drives_on_both_kinds_of_nodes_move_what_the_formulas_say(self):
        keys = {"mode": "su+o", "exchange__ranks_per_node": 1, **FEW}
        summary = self.run_of({"csd__storage_ranks": 1, "csd__per_rank": "[1,1,2]", **keys})
        self.assert_same_bits(summary, self.run_of(keys))
        # The storage node has half of the state, so that each of two nodes sends it half of its gradients, and a
        # quarter to the other.
        links, formulas = (summary[f"{kind}bytes_per_parameter"] for kind in ("", "formula_"))
        crossing = {"network": {"gradients": 2 * 2 * 0.75, "parameters": 2 * 2 * 0.75}}
        self.assert_links(links, crossing, program.padding_of(summary))
        for link, kinds in formulas.items():
            for kind, formula in kinds.items():
                self.assertAlmostEqual(links[link][kind] / formula, 1, delta=0.03, msg=f"{link} {kind}")

    def test_gradients_and_parameters_alone_cross_the_network(self):
        for storage in (1, 2, 4):
            with self.subTest(storage=storage):
                summary = self.run_of({"csd__storage_ranks": storage, "mode": "su+o+c", **FEW})
                padding = program.padding_of(summary)
                links = summary["bytes_per_parameter"]
                # The computing node sends each tile's payload once; parameters come back once. The 24 bytes of the
                # state stay in the storage nodes.
                payload = links["network"]["gradients"]
                self.assert_links(links, {"network": {"gradients": PAYLOAD["q4"], "parameters": 2}}, padding)
                for kind, formula in summary["formula_bytes_per_parameter"]["network"].items():
                    self.assertAlmostEqual(links["network"][kind], formula, delta=0.001)
                self.assert_bytes(
                    links["device_internal"]["read"] + links["device_internal"]["write"], 24, padding * 1.01
                )
                steps = summary["steps"] * summary["parameters"]
                sent = [bytes_of / steps for bytes_of in summary["network_sent_bytes"]]
                self.assertAlmostEqual(sum(sent[:2]), payload, delta=1e-9)
                for of_storage in sent[2:]:
                    self.assert_bytes(of_storage, 2 / storage, padding)

    def test_compare_reports_every_mode_and_leaves_no_state_behind(self):
        summary = self.folder / "compare.json"
        done = program.succeed(
            2,
            "compare",
            *self.arguments(gather__codec="delta")[1:],
            *("--steps", 2, "--devices", "1,2", "--traffic", "--json", summary),
        )
        runs = json.loads(summary.read_text())
        self.assertEqual(
            [(run["mode"], run["devices"]) for run in runs],
            [(mode, devices) for devices in (2, 4) for mode in ("base", "su", "su+o", "su+o+c")],
        )
        self.assertEqual(len({run["losses"][0] for run in runs}), 1)
        self.assertEqual(len({run["masters_xxh3"] for run in runs if run["mode"] != "su+o+c"}), 1)
        for run in runs:
            self.assertEqual("deltas" in run, run["mode"] != "base")
        self.assertIn("6M", done.stdout)
        self.assertFalse((self.folder / "state/compare").exists())


class CloseLosses(program.Scenario):
    """Runs whose sums have another order, and so other bits."""

    def test_any_ranks_and_micro_batches_give_the_losses_of_one_rank(self):
        fp32 = {"model__dtype": "fp32", "train__steps": 20}
        one = self.train(ranks=1, **fp32)
        for keys in ({"ranks": 2}, {"ranks": 3}, {"ranks": 4}, {"ranks": 1, "train__micro_batch": 3}):
            with self.subTest(**keys):
                summary = self.train(**keys, **fp32)
                self.assertEqual(summary["ranks"], keys["ranks"])
                self.assert_close(summary["losses"], one["losses"], 1e-4)

    def test_decay_of_matrices_on_two_ranks_is_that_of_one_and_differs_from_decay_of_all(self):
        keys = {**MATRICES, "csd__state": "fp32", "model__dtype": "fp32", "train__steps": 8}
        one, two = (self.train(ranks=ranks, **keys) for ranks in (1, 2))
        self.assert_close(two["losses"], one["losses"], 1e-4)
        others = [self.train(**{**keys, **other}) for other in ({"train__decay": "all"}, {"train__weight_decay": 0})]
        self.assertEqual(len({run["masters_xxh3"] for run in (two, *others)}), 3)

    def test_ranks_agree_on_codes(self):
        # At the config's rate the loss jumps in step 7, and jumps differ by what rounding does.
        keys = {"mode": "su+o+c", "compress__codec": "q8", "train__learning_rate": 1e-3, "train__steps": 20}
        two = self.train(**keys)
        cases = [(ranks, gradients) for ranks in (1, 3, 4) for gradients in ("node", "replicated")]
        for ranks, gradients in program.sweep(cases, 0, 3, 4):
            with self.subTest(ranks=ranks, gradients=gradients):
                other = self.train(ranks=ranks, placement__gradients=gradients, flags=["--fresh"], **keys)
                self.assert_close(other["losses"], two["losses"], 2e-3)


if __name__ == "__main__":
    program.main()
