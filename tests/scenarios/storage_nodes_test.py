"""Ranks that hold devices and compute nothing train the same model as devices beside the ranks that compute.

A storage rank counts as a node of its own, so what passes between it and the others is counted as network traffic.
"""

import program

COMPUTING = 2


class StorageNodes(program.Scenario):
    def train_stored(self, storage, flags=(), **keys):
        return self.train(
            ranks=COMPUTING + storage,
            csd__storage_ranks=storage,
            state=f"storage-{storage}",
            flags=["--fresh", *flags],
            **{"train__steps": 6, **keys},
        )

    def test_masters_are_those_of_devices_on_the_computing_ranks(self):
        for keys in (
            {},
            {"mode": "su+o+c"},
            {"mode": "su"},
            {"mode": "base"},
            {"gather__codec": "delta", "placement__parameters": "node"},
            {
                "mode": "su+o+c",
                "placement__gradients": "replicated",
                "compress__codec": "topk",
                "csd__speed": '"auto"',
                "csd__per_rank": 2,
            },
            {"model__dtype": "fp16", "train__loss_scale": 4e9},
        ):
            usual = self.train(flags=["--fresh"], **{"train__steps": 6, **keys})
            for storage in (1, 2):
                with self.subTest(storage=storage, **keys):
                    self.assert_same_bits(self.train_stored(storage, **keys), usual)

    def test_devices_lie_on_any_ranks(self):
        usual = self.train(train__steps=6)
        self.assert_same_bits(self.train_stored(2, csd__per_rank="[1,0,2,1]"), usual)

    def test_drives_on_both_kinds_of_nodes_move_what_the_formulas_say(self):
        keys = {"exchange__ranks_per_node": 1, "csd__slots": 4}
        usual = self.train(train__steps=6, **keys)
        summary = self.train_stored(1, csd__per_rank="[1,1,2]", **keys)
        self.assert_same_bits(summary, usual)
        # The storage node has half of the state, so that each of two nodes sends it half of its gradients, and a
        # quarter to the other.
        links, formulas = (summary[f"{kind}bytes_per_parameter"] for kind in ("", "formula_"))
        for kind in ("gradients", "parameters"):
            self.assert_bytes(links["network"][kind], 2 * 2 * 0.75, program.padding_of(summary))
        for link, kinds in formulas.items():
            for kind, formula in kinds.items():
                self.assertAlmostEqual(links[link][kind] / formula, 1, delta=0.03, msg=f"{link} {kind}")

    def test_gradients_and_parameters_alone_cross_the_network(self):
        for storage in (1, 2, 4):
            with self.subTest(storage=storage):
                summary = self.train_stored(storage, mode="su+o+c", csd__subgroup_tiles=1, csd__slots=4)
                padding = program.padding_of(summary)
                links = summary["bytes_per_parameter"]
                # The computing node sends each tile's payload once, q4's 0.5 bytes per element and its scales;
                # parameters come back once, 2 bytes each. The 24 bytes of the state stay in the storage nodes.
                payload = links["network"]["gradients"]
                self.assert_bytes(payload, 0.53125, padding)
                self.assert_bytes(links["network"]["parameters"], 2, padding)
                for kind, formula in summary["formula_bytes_per_parameter"]["network"].items():
                    self.assertAlmostEqual(links["network"][kind], formula, delta=0.001)
                self.assert_bytes(
                    links["device_internal"]["read"] + links["device_internal"]["write"], 24, padding * 1.01
                )
                steps = summary["steps"] * summary["parameters"]
                sent = [bytes_of / steps for bytes_of in summary["network_sent_bytes"]]
                self.assertAlmostEqual(sum(sent[:COMPUTING]), payload, delta=1e-9)
                for of_storage in sent[COMPUTING:]:
                    self.assert_bytes(of_storage, 2 / storage, padding)

    def test_their_number_may_change(self):
        usual = self.train(train__steps=10)
        last = 0
        for storage in (1, 2, 0, 3, 1):
            last += 2
            parts = self.train(
                ranks=COMPUTING + storage,
                csd__storage_ranks=storage,
                state="elastic",
                train__steps=10,
                train__stop_at=last,
                flags=["--resume-if-any"],
            )
            self.assertEqual(parts["first_step"], last - 1)
        self.assertEqual(parts["masters_xxh3"], usual["masters_xxh3"])


if __name__ == "__main__":
    program.main()
