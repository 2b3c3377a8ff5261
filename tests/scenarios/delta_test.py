"""Gathering deltas gives the same bits as dense gathers, with fewer bytes."""

import json

import program

# Includes a message's header and table.
MOST = 1.01


class Delta(program.Scenario):
    def pair(self, ranks=2, state="", **keys):
        """Summaries of the same run with the dense gather and with deltas."""
        dense = self.train(ranks=ranks, state=f"{state}dense", **keys)
        delta = self.train(ranks=ranks, state=f"{state}delta", gather__codec="delta", **keys)
        self.assert_same_bits(dense, delta)
        return dense["bytes_per_parameter"], delta

    def test_modes_formats_and_layouts_are_bit_identical_to_dense(self):
        for number, keys in enumerate(
            program.sweep(
                (
                    {"mode": "su", "csd__per_rank": 2},
                    {"model__dtype": "fp16"},
                    {"csd__state": "compact"},
                    {"csd__state": "bf16", "ranks": 1, "csd__subgroup_tiles": 3},
                    {"csd__state": "compact", "model__dtype": "fp16"},
                    {"mode": "su+o+c", "compress__codec": "topk", "ranks": 3, "csd__per_rank": "[2,0,1]"},
                ),
                0,
                3,
                4,
                5,
            )
        ):
            with self.subTest(**keys):
                dense, delta = self.pair(state=number, train__steps=8, **keys)
                taken = 1 - delta["skipped_steps"] / 8
                for link, size in (("host_link", 2 * taken), ("node", 2 * taken * (keys.get("ranks", 2) - 1))):
                    self.assertLessEqual(
                        delta["bytes_per_parameter"][link]["parameters"], MOST * dense[link]["parameters"]
                    )
                    self.assertAlmostEqual(dense[link]["parameters"], size, delta=0.01 * max(size, 1))

    def test_steps_that_are_skipped_change_nothing(self):
        _, delta = self.pair(model__dtype="fp16", train__loss_scale=2.0**32, train__steps=20)
        self.assertGreater(delta["skipped_steps"], 0)
        self.assertLess(delta["skipped_steps"], 20)

    def test_a_resumed_run_and_one_that_changes_the_gather_are_bit_identical(self):
        keys = {"csd__per_rank": 2, "train__steps": 16}
        whole = self.train(state="whole", **keys)
        for second in ("delta", "dense"):
            with self.subTest(second=second):
                first = self.train(state=second, train__stop_at=8, gather__codec="delta", **keys)
                again = self.train(state=second, gather__codec=second, flags=["--resume"], **keys)
                self.assert_goes_on(whole, first, again)

    def test_another_layout_resumes_as_with_the_dense_gather(self):
        keys = {"train__steps": 12}
        results = []
        for codec in ("dense", "delta"):
            self.train(state=codec, csd__per_rank=2, train__stop_at=6, gather__codec=codec, **keys)
            results.append(self.train(ranks=3, state=codec, gather__codec=codec, flags=["--resume"], **keys))
        self.assert_same_bits(*results)

    def test_fine_tuning_moves_a_fraction_of_the_bytes(self):
        """Continues from a trained model on another text, at small constant rates."""
        trained = self.train(state="trained", train__steps=60, csd__subgroup_tiles=4)
        other = self.other_text()
        self.fine_tune_with_q4(trained, other)
        for rate, most in program.sweep(((2e-5, 0.40), (5e-6, 0.25)), 0):
            with self.subTest(rate=rate):
                keys = {
                    "state": f"tuned-{rate}",
                    "data__train": f'"{other}"',
                    "train__steps": 80,
                    "train__learning_rate": rate,
                    "train__final_rate_share": 1,
                    "csd__subgroup_tiles": 4,
                    "flags": ["--from", trained["checkpoint"]],
                }
                tuned = self.train(gather__codec="delta", **keys)
                bytes_of = tuned["bytes_per_parameter"]
                self.assertLessEqual(bytes_of["host_link"]["parameters"], most)
                self.assertLessEqual(bytes_of["node"]["parameters"], most)  # both ranks are in one node
                forms = tuned["deltas"]
                self.assertAlmostEqual(sum(form["tile_share"] for form in forms.values()), 1)
                self.assertAlmostEqual(
                    sum(form["bytes_per_parameter"] for form in forms.values()),
                    bytes_of["host_link"]["parameters"],
                    delta=0.001,
                )
                keys["state"] = f"dense-{rate}"
                self.assert_same_bits(tuned, self.train(**keys))

    def fine_tune_with_q4(self, trained, other):
        """Takes one byte per parameter on the shared links: gradients and new parameters together, on one node. The
        paper's methods take 32, 8 and 4.08."""
        tuned = self.train(
            state="tuned",
            data__train=f'"{other}"',
            train__steps=80,
            train__learning_rate=2e-5,
            train__final_rate_share=1,
            csd__subgroup_tiles=4,
            gather__codec="delta",
            mode="su+o+c",
            compress__codec="q4",
            flags=["--from", trained["checkpoint"]],
        )
        links = tuned["shared_links"]
        print(f"\nshared links: {links}", flush=True)
        self.assertLessEqual(links["measured"]["total"], 1.0)
        host_link = tuned["bytes_per_parameter"]["host_link"]
        self.assertAlmostEqual(links["measured"]["total"], host_link["gradients"] + host_link["parameters"], delta=1e-9)
        self.assertGreaterEqual(host_link["gradients"], 0.53)  # q4 exactly: nothing was skipped
        self.assertEqual(
            [links[method]["total"] for method in ("zero_infinity", "smart_update", "smart_comp_2_percent")],
            [32, 8, 4.08],
        )
        self.assertLess(tuned["losses"][-1], tuned["losses"][0])

    def other_text(self):
        other = self.folder / "other.txt"
        other.write_text("\n".join(f"{i} storage computes what {i * i} hosts need not move" for i in range(4000)))
        return other

    def test_compare_runs_base_beside_modes_with_deltas(self):
        summary = self.folder / "compare.json"
        program.succeed(
            2,
            "compare",
            *self.arguments(gather__codec="delta")[1:],
            "--steps",
            2,
            "--modes",
            "base,su+o",
            "--json",
            summary,
        )
        base, near = json.loads(summary.read_text())
        self.assertNotIn("deltas", base)
        self.assertIn("deltas", near)
        self.assertEqual(base["masters_xxh3"], near["masters_xxh3"])


if __name__ == "__main__":
    program.main()
