"""Gradients encoded on a GPU train like those encoded by the host. Skipped without a GPU."""

import json
import unittest

import program


class Gpu(program.Scenario):
    @classmethod
    def setUpClass(cls):
        found = program.run(0, "doctor").stdout
        if "PyTorch finds 0" in found:
            raise unittest.SkipTest("PyTorch finds no GPU here")

    def train_encoded(self, where, **keys):
        summary = self.train(state=where, model__device='"cuda"', exchange__transport=f'"{where}"', **keys)
        self.assertEqual(summary["compress"]["where"], "gpu" if where == "auto" else "host")
        return summary

    def assert_same_bits_wherever_encoded(self, **keys):
        self.assert_same_bits(self.train_encoded("auto", **keys), self.train_encoded("host", **keys))

    def test_topk_after_a_dense_warm_up(self):
        self.assert_same_bits_wherever_encoded(
            ranks=1, train__steps=6, csd__per_rank=2, mode="su+o+c", compress__codec="topk", compress__warmup_steps=2
        )

    def test_stochastic_codes_of_two_ranks(self):
        self.assert_same_bits_wherever_encoded(
            ranks=2,
            train__steps=6,
            mode="su+o+c",
            compress__codec="q4",
            compress__rounding="stochastic",
            placement__gradients="replicated",
        )

    def findings(self):
        report = self.folder / "doctor.json"
        program.run(0, "doctor", "--json", report)
        return json.loads(report.read_text())["nodes"][0]["findings"]

    def need_nccl_and_gpus(self, ranks):
        found = self.findings()
        if not found["nccl_nvlink"]["is_built"] or found["model"]["gpus"] < ranks:
            self.skipTest(f"there are fewer GPUs here than {ranks}, or no NCCL")

    def assert_same_bits_added_up_on_gpus(self, ranks, **keys):
        self.need_nccl_and_gpus(ranks)
        keys = dict(ranks=ranks, train__steps=6, model__device='"cuda"', **keys)
        there = self.train(state="gpu", exchange__transport="nccl", **keys)
        here = self.train(state="host", exchange__transport="mpi", **keys)
        self.assertEqual((there["transport"], there["compress"]["where"]), ("nccl", "gpu"))
        self.assertEqual((here["transport"], here["compress"]["where"]), ("mpi", "host"))
        self.assert_same_bits(there, here)
        self.assertEqual(there["bytes_per_parameter"], here["bytes_per_parameter"])
        return there, here

    def test_gpus_add_up_gradients(self):
        q4, topk = (
            {"compress__codec": "q4", "compress__rounding": "stochastic"},
            {"compress__codec": "topk", "compress__warmup_steps": 2},
        )
        for ranks, keys in ((2, {}), (2, {"mode": "su+o+c", **q4}), (4, {"mode": "su+o+c", **topk})):
            with self.subTest(ranks=ranks, **keys):
                self.assert_same_bits_added_up_on_gpus(ranks, flags=["--fresh"], **keys)

    def test_four_gpus_of_two_nodes(self):
        there, here = self.assert_same_bits_added_up_on_gpus(
            4, mode="su+o+c", compress__codec="q4", exchange__ranks_per_node=2, csd__per_rank="[2,1,1,2]"
        )
        self.assertEqual((there["payload_transport"], here["payload_transport"]), ("nccl", "mpi"))
        self.assertEqual((there["parameter_transport"], here["parameter_transport"]), ("nccl", "host"))

    def assert_same_bits_of_payloads_between_gpus(self, ranks, **keys):
        """Every node has one rank."""
        self.need_nccl_and_gpus(ranks)
        keys = dict(
            ranks=ranks, train__steps=6, model__device='"cuda"', mode="su+o+c", exchange__ranks_per_node=1, **keys
        )
        there = self.train(state="gpu", exchange__transport="auto", **keys)
        here = self.train(state="host", exchange__transport="mpi", **keys)
        self.assertEqual(
            (there["transport"], there["payload_transport"], there["compress"]["where"]), (None, "nccl", "gpu")
        )
        self.assertEqual(
            (here["transport"], here["payload_transport"], here["compress"]["where"]), (None, "mpi", "gpu")
        )
        self.assert_same_bits(there, here)
        self.assertEqual(there["bytes_per_parameter"], here["bytes_per_parameter"])

    def test_payloads_between_gpus(self):
        q4 = {"compress__codec": "q4", "compress__rounding": "stochastic", "csd__per_rank": "[1,2]"}
        for ranks, keys in (
            (2, q4),
            (2, {"compress__codec": "topk", "compress__warmup_steps": 2}),
            (4, {"compress__codec": "q8"}),
            (2, {**q4, "placement__gradients": 2}),  # sums of two nodes are encoded once
            (4, {"compress__codec": "q4", "placement__gradients": 2, "placement__optimizer": 2}),
        ):  # to two copies of the state
            with self.subTest(ranks=ranks, **keys):
                self.assert_same_bits_of_payloads_between_gpus(ranks, flags=["--fresh"], **keys)

    def test_payloads_of_copies_of_the_state_go_through_host_memory(self):
        self.need_nccl_and_gpus(2)
        summary = self.train(
            ranks=2, train__steps=2, model__device='"cuda"', exchange__ranks_per_node=1, placement__optimizer="node"
        )
        self.assertEqual((summary["payload_transport"], summary["placement"]["copies"]), ("mpi", 2))

    # A run whose state may lie in GPU memory.
    TIERED = {
        "train__steps": 8,
        "model__device": '"cuda"',
        "mode": "su+o+c",
        "compress__codec": "q4",
        "checkpoint__every": 3,
        "csd__durability": '"checkpoint"',
    }

    def train_on_drives(self):
        return self.train(ranks=1, state="drives", **self.TIERED)

    def test_state_in_gpu_memory_has_the_bits_of_drives(self):
        drives = self.train_on_drives()
        for tiers in (
            {"gpu": 0.003},
            {"gpu": 0.003, "memory": 0.003},
            {"gpu": 1},
            {"gpu": '"auto"', "memory": '"auto"'},
        ):
            keys = {f"csd__tiers__{tier}": gb for tier, gb in tiers.items()}
            self.assert_same_bits(drives, self.train(ranks=1, state="tiers", flags=["--fresh"], **self.TIERED, **keys))

    def test_state_in_gpu_memory_beside_a_storage_rank_has_the_bits_of_drives(self):
        stored = self.train(ranks=2, state="stored", csd__storage_ranks=1, csd__tiers__gpu=0.003, **self.TIERED)
        self.assert_same_bits(self.train_on_drives(), stored)

    def test_state_in_gpu_memory_beside_a_storage_rank_as_planned_has_the_bits_of_drives(self):
        arguments = self.arguments(state="planned", csd__storage_ranks=1, csd__tiers__gpu='"auto"', **self.TIERED)
        summary = self.folder / "planned.json"
        planned = program.succeed(
            2, *arguments, "--site", "cluster/csd-pod", "--set", "csd.update_mparam_s=1", "--json", summary
        )
        self.assertRegex(planned.stdout, r" \S+ .B [^;]*\(T_gpu \S+ s\)")
        self.assert_same_bits(self.train_on_drives(), json.loads(summary.read_text()))

    def test_state_in_gpu_memory_comes_back_from_a_checkpoint_in_other_tiers_or_in_the_same(self):
        masters = self.train_on_drives()["masters_xxh3"]
        arguments = self.arguments(state="killed", csd__tiers__gpu=1, **self.TIERED)
        for tiers in (["--set", "csd.tiers.gpu=1"], ["--set", "csd.tiers.gpu=0"]):
            killed = program.run(1, *arguments, "--fresh", fault="rank=0 phase=after_gradients count=6")
            self.assertNotEqual(killed.returncode, 0)
            summary = self.folder / "resumed.json"
            resumed = program.run(1, *arguments, *tiers, "--resume", "--json", summary)
            self.assertIn("at step 3", resumed.stdout)
            self.assertEqual(json.loads(summary.read_text())["masters_xxh3"], masters)

    def assert_same_bits_brought_together(self, ranks, of_copy=None, **keys):
        """of_copy: how many of the ranks bring their parameters together, if not all."""
        self.need_nccl_and_gpus(ranks)
        keys = dict(ranks=ranks, train__steps=6, model__device='"cuda"', model__layers=6, **keys)
        together = self.train(state="together", **keys)
        alone = self.train(state="alone", exchange__transport="mpi", **keys)
        self.assertEqual((together["parameter_transport"], alone["parameter_transport"]), ("nccl", "host"))
        self.assert_same_bits(together, alone)
        self.assertEqual(together["gpu"]["plan"]["slots"], alone["gpu"]["plan"]["slots"])
        bytes_of = lambda summary: summary["gpu"]["step_bytes"]["parameters"]
        self.assertAlmostEqual(bytes_of(together) * (of_copy or ranks) / bytes_of(alone), 1, delta=0.05)
        for summary in (together, alone):
            self.assertEqual(
                summary["gpu"]["step_bytes"]["parameters"] + summary["gpu"]["step_bytes"]["inputs"],
                summary["gpu"]["plan"]["step_bytes"],
            )
        return together

    def test_gpus_bring_parameters_together(self):
        node = {"placement__parameters": "node"}
        for ranks, slots, keys in (
            (2, 0, {}),
            (2, 3, {**node, "train__evaluate_every": 3}),
            (4, None, {**node, "model__activations": "host"}),
            (4, None, {"of_copy": 2, "placement__parameters": 2}),
            (2, None, {"mode": "su"}),
        ):
            with self.subTest(ranks=ranks, **keys):
                together = self.assert_same_bits_brought_together(ranks, flags=["--fresh"], **keys)
                self.assertIn(slots, (None, together["gpu"]["plan"]["slots"]))

    def test_a_killed_rank_ends_all_and_the_run_resumes_to_the_same_bits(self):
        self.need_nccl_and_gpus(2)
        keys = dict(model__device='"cuda"', exchange__transport="nccl", train__steps=6)
        undisturbed = self.train(ranks=2, state="whole", **keys)
        killed = program.run(2, *self.arguments(state="killed", **keys), fault="rank=1 phase=after_scatter count=20")
        self.assertNotEqual(killed.returncode, 0, killed.stdout)
        resumed = self.train(ranks=2, state="killed", flags=["--resume"], **keys)
        self.assertEqual(resumed["masters_xxh3"], undisturbed["masters_xxh3"])

    def test_ranks_that_share_a_gpu_add_up_on_the_host(self):
        ranks = self.findings()["model"]["gpus"] + 1
        summary = self.train(ranks=ranks, train__steps=2, model__device='"cuda"')
        self.assertEqual((summary["transport"], summary["compress"]["where"]), ("mpi", "host"))
        refused = program.run(
            ranks, *self.arguments(state="refused", train__steps=2, model__device='"cuda"', exchange__transport="nccl")
        )
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertRegex(refused.stderr, "exchange.transport is .nccl., but")

    def test_base_has_the_bits_of_su_o(self):
        keys = dict(ranks=1, train__steps=8, csd__per_rank=2, model__device='"cuda"', model__width=256, model__heads=4)
        self.assert_same_bits(
            self.train(state="base", mode="base", **keys), self.train(state="su", mode="su+o", **keys)
        )

    def test_streamed_parameters_and_inputs_on_the_host_have_the_bits_of_resident_ones(self):
        keys = dict(ranks=1, train__steps=6, model__device='"cuda"', model__layers=6)
        resident = self.train(state="resident", model__activations="gpu", **keys)
        self.assertEqual(resident["gpu"]["plan"]["slots"], 0)
        streamed = self.train(state="streamed", placement__parameters="node", model__activations="host", **keys)
        self.assertEqual(streamed["gpu"]["plan"]["slots"], 3)
        self.assertTrue(streamed["gpu"]["plan"]["inputs_on_host"])
        self.assert_same_bits(resident, streamed)
        for summary in (resident, streamed):
            self.assertEqual(
                summary["gpu"]["step_bytes"]["parameters"] + summary["gpu"]["step_bytes"]["inputs"],
                summary["gpu"]["plan"]["step_bytes"],
            )

    def test_takes_no_more_than_it_may(self):
        keys = dict(
            ranks=1, train__steps=3, model__device='"cuda"', model__layers=12, model__width=768, model__heads=12
        )
        free = self.train(state="free", **keys)
        plan = free["gpu"]["plan"]
        self.assertEqual(plan["slots"], 0)
        self.assertGreater(plan["kept_blocks"], 0)
        cap = (plan["total_bytes"] - plan["kept_bytes"] - plan["parameter_bytes"] / 2) / 1e9
        capped = self.train(state="capped", model__gpu_memory_gb=cap, **keys)
        self.assertGreater(capped["gpu"]["plan"]["slots"] + capped["gpu"]["plan"]["inputs_on_host"], 0)
        self.assertLessEqual(capped["gpu"]["most_bytes"], cap * 1e9)
        self.assert_same_bits(free, capped)

    def test_says_what_to_set_where_nothing_fits(self):
        arguments = self.arguments(model__device='"cuda"', model__gpu_memory_gb=0.01)
        self.assert_refusal(program.run(1, *arguments), "set model.gpu_memory_gb to ")


if __name__ == "__main__":
    program.main()
