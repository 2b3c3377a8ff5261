"""cluster/simulate at 64 ranks: the exchanged data are right, and simulated times resemble the planner's."""
import json
import subprocess

import program


class Simulate(program.Scenario):
    def simulate(self, *options):
        out = self.folder / "results"
        done = subprocess.run([program.ROOT / "cluster/simulate", "--quick", "--out", out, "--program", program.PROGRAM, *options],
                              cwd=program.ROOT, env=program.environment(), text=True, capture_output=True, timeout=program.HANG_S)
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        return json.loads((out / "simulate.json").read_text())

    def test_64_ranks(self):
        result = self.simulate("--in-flight", "all")
        self.assertRegex(result["notes"][0], r"64 ranks: \d{7,} sums and parameters compared, all right")
        row, = result["rows"]
        self.assertEqual((row["ranks"], row["nodes"], row["origin"]), (64, 8, "modelled"))
        # Simulated times are the same on every machine; docs/results/simulation.md explains the numbers.
        self.assertGreaterEqual(row["simulated_opt_all_s"], 0.99 * max(row["csd_s"], row["gather_s"]))
        self.assertLess(row["simulated_opt_all_s"], 1.5 * row["opt_s"])
        self.assertLess(row["simulated_scatter_s"], 1.5 * row["scatter_s"])
        self.assertGreater(row["simulated_scatter_s"], 0.5 * row["scatter_s"])


if __name__ == "__main__":
    program.main()
