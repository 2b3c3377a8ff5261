"""Gathering deltas moves a fraction of the bytes where few parameters change, with the same bits."""

import program


class Delta(program.Scenario):
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


if __name__ == "__main__":
    program.main()
