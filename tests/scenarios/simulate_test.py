"""cluster/simulate at 64 ranks: the exchanged data are right, and a replayed step resembles the planner's."""

import json

import program


class Simulate(program.Scenario):
    def simulate(self, *options):
        out = self.folder / "results"
        done = program.call(
            program.ROOT / "cluster/simulate", "--quick", "--out", out, "--program", program.PROGRAM, *options
        )
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return json.loads((out / "simulate.json").read_text())

    def test_64_ranks(self):
        result = self.simulate("--cross", "0,64")
        self.assertRegex(result["notes"][1], r"64 ranks: \d{7,} sums and parameters compared, all right")
        (row,) = result["rows"]
        self.assertEqual((row["ranks"], row["nodes"], row["origin"]), (64, 8, "modelled"))
        operations = json.loads((program.ROOT / "docs/results/data/operations.json").read_text())
        _, *layers, _ = operations["blocks"]
        least = {name: 64 * min(layer[name] for layer in layers) for name in ("forward", "backward")}
        # Simulated times are the same on every machine: no phase is shorter than what was traced, and the rest is of
        # the links.
        self.assertGreater(row["simulated_backward_s"], least["backward"])
        self.assertGreater(row["simulated_update_s"], least["forward"])
        self.assertLess(abs(row["over"]), 0.5)
        self.assertAlmostEqual(row["simulated_step_s"], row["simulated_backward_s"] + row["simulated_update_s"])
        self.assertGreater(
            row["simulated_step_64_s"], 1.2 * row["simulated_step_s"], "other programs take their part of the links"
        )


if __name__ == "__main__":
    program.main()
