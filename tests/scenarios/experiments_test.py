"""Runs each of cluster/experiments with --quick: it gives a table and a JSON file; then the report of all."""

import json
import subprocess
import tomllib

import program

EXPERIMENTS = program.ROOT / "cluster/experiments"


class Experiments(program.Scenario):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "results"
        self.mine = self.out / "scaling.work"

    def experiment(self, name, *options):
        """(table, result) of an experiment that must succeed."""
        # Messages between virtual hosts take no shared memory.
        environment = {
            key: value for key, value in program.environment().items() if key not in ("OMPI_MCA_pml", "OMPI_MCA_btl")
        }
        done = subprocess.run(
            [EXPERIMENTS / name, "--quick", "--out", self.out, "--program", program.PROGRAM_FORKED, *options],
            cwd=program.ROOT,
            env=environment,
            text=True,
            capture_output=True,
            timeout=program.HANG_S,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode == 77:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 0, f"{name}\n{done.stdout}\n{done.stderr}")
        result = json.loads((self.out / f"{name}.json").read_text())
        self.assertEqual(result["kind"], "nearstep experiment")
        self.assertRegex(result["commit"], r"^[0-9a-f]{7,}|unknown")
        self.assertEqual([path for path in self.out.glob(f"{name}.work*") if path != self.mine], [])
        for row in result["rows"]:
            self.assertIn(row["origin"], ("measured", "shaped", "modelled", "simulated", "published"))
        return done.stdout, result

    def test_devices_and_cost_and_their_report(self):
        text, result = self.experiment("devices", "--steps", "6")
        rows = {(row["column"], row["devices"]): row for row in result["rows"]}
        self.assertEqual({column for column, _ in rows}, {"base", "su", "su+o", "su+o+c topk", "ours"})
        # Compares T_opt,n of the replication's formula with the measured update.
        for row in rows.values():
            self.assertGreater(row["modelled_update_s"], 0)
            self.assertLess(row["modelled_update_s"], row["update_s"] * 1.02, f"faster than its links: {row}")
        for column in ("su+o", "ours"):
            self.assertLess(rows[column, 2]["modelled_update_s"], 0.7 * rows[column, 1]["modelled_update_s"])
        text, cost = self.experiment("cost", "--from", self.out / "devices.json")
        self.assertEqual([row["price"] for row in cost["rows"] if row["column"] == "base"], [47400, 47800])
        self.assertEqual([row["price"] for row in cost["rows"] if row["column"] == "ours"], [49400, 51800])
        self.assertAlmostEqual(cost["rows"][0]["relative_cost"], 1)

        program.succeed(0, "report", self.out)
        page = (self.out / "report.html").read_text()
        self.assertEqual(page.count("<figcaption>"), 4)
        for origin in ("shaped", "modelled"):
            self.assertIn(f"ours, {origin}: devices 2, ", page)
            self.assertIn(f'<td class="{origin}">', page)

    def test_formats(self):
        _, result = self.experiment("formats", "--steps", "6")
        rows = {row["column"]: row for row in result["rows"]}
        self.assertAlmostEqual(rows["su+o compact"]["state_bytes"], 4.03, delta=0.1)
        self.assertAlmostEqual(rows["su+o+c q4"]["gradient_bytes"], 0.53, delta=0.01)

    def test_congestion(self):
        _, result = self.experiment("congestion", "--devices", "2")
        rows = {(row["gpu_traffic"], row["column"], row["ranks"]): row for row in result["rows"]}
        host = 12e9 * 0.025
        for (traffic, column, ranks), row in rows.items():
            if traffic == "split":
                # Parameters and one backward pass always cross the shared host link. Ranks begin a pass at slightly
                # different times, and each measures its own part of the crossing.
                least = (0.99 if ranks == 1 else 0.8) * 2 * row["parameters"] / host
                self.assertGreaterEqual(row["forward_s"], least, (traffic, column, ranks))
                self.assertGreaterEqual(row["backward_s"], least, (traffic, column, ranks))

    def test_devices_beside_the_paper(self):
        text, result = self.experiment(
            "devices",
            "--paper",
            "--devices",
            "1",
            "--set",
            "train.global_batch=4",
            "--lines",
            self.folder / "lines.jsonl",
        )
        lines = [json.loads(line) for line in (self.folder / "lines.jsonl").read_text().splitlines()]
        self.assertEqual(len(lines), len(result["rows"]))
        for line, row in zip(lines, result["rows"]):
            self.assertEqual(line | row, line)
            self.assertGreaterEqual(len(line["each_step_s"]), 2)
            self.assertTrue(line["commit"] and line["machine"] and line["date"])
        self.assertIn("<0.80>", text)

    def test_paper(self):
        _, result = self.experiment("paper")
        rows = {(row["column"], row["devices"]): row for row in result["rows"]}
        # The base and su of SmartSSDs are bound by the links alone, so their ratio is that of the rates, which the
        # paper measured as 1.52.
        self.assertLess(abs(rows["su", 10]["over_base"] / rows["su", 10]["published_over_base"] - 1), 0.05)
        for devices in (6, 10):
            self.assertLess(rows["compact state, q4", devices]["step_s"], rows["su+o", devices]["step_s"])

    def test_crossover(self):
        _, result = self.experiment("crossover", "--measure", "1,2", "--links", "12", "--steps", "3")
        rows = {
            (row["origin"], row["devices"], row["link_gb_s"], row["state"], row["engine_mparam_s"]): row
            for row in result["rows"]
        }
        self.assertLess(rows["modelled", 1, 12, "compact", 75]["over_base"], 0.9)  # a slow engine
        self.assertEqual({row["origin"] for row in rows.values()}, {"shaped", "modelled"})
        for row in rows.values():
            self.assertGreater(row["over_base"], 0, row)

    def test_scaling(self):
        self.mine.mkdir(parents=True)
        (self.mine / "notes").write_text("not of an experiment")
        text, result = self.experiment("scaling", "--nodes", "1,128,1024")
        self.assertEqual((self.mine / "notes").read_text(), "not of an experiment")
        weak = [row for row in result["rows"] if row["series"] == "weak, any placement"]
        self.assertEqual([row["nodes"] for row in weak], [1, 128, 1024])
        for row in weak:
            self.assertEqual(row["origin"], "modelled")
            self.assertAlmostEqual(
                row["efficiency"] * weak[0]["tokens_per_s"] * row["nodes"],
                row["tokens_per_s"],
                delta=1e-6 * row["tokens_per_s"],
            )
            self.assertLessEqual(row["compute_share"], 1)
        self.assertEqual(
            [row["efficiency"] for row in result["rows"] if row["origin"] == "published"], [1.0, 3625 / 4078]
        )

    def test_llama_makes_its_page_again_and_explains_each_miss(self):
        page = self.folder / "llama.md"
        done = program.call(
            EXPERIMENTS / "llama", "--page", page, "--out", self.out, "--program", program.PROGRAM_FORKED
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(page.read_text(), (program.ROOT / "docs/results/llama.md").read_text())
        rows = json.loads((self.out / "llama.json").read_text())["rows"]
        self.assertEqual({row["origin"] for row in rows}, {"modelled"})
        misses = [row for row in rows if abs(row.get("miss", 0)) > 0.15]
        self.assertLess(len(misses), 3, misses)
        self.assertEqual(page.read_text().count("unknown"), 0)

    def test_nodes(self):
        _, result = self.experiment("nodes")
        rows = {(row["nodes"], row["csds"]): row for row in result["rows"] if not row["storage"]}
        stored = {row["storage"]: row for row in result["rows"] if row["storage"]}
        self.assertEqual(set(stored), {1, 2})
        # A busy machine makes a step longer than its links do, never shorter.
        for row in result["rows"]:
            self.assertGreaterEqual(row["update_s"], 0.98 * row["modelled_update_s"], row)
        self.assertLess(stored[2]["modelled_update_s"], 0.7 * stored[1]["modelled_update_s"])
        self.assertEqual(rows[1, 2]["network_bytes"], 0)
        self.assertGreater(rows[2, 2]["network_bytes"], 0)
        # 8 tiles, each a subgroup: a device reads its first tile, then writes all of its tiles at 3/5 of the rate. Then
        # one subgroup's share of the node's new parameters is on its way: the same time for the whole node in both
        # rows.
        link = tomllib.loads((program.ROOT / "cluster/smartssd-node-scaled/site.toml").read_text())["link"]
        read = 65536 * (4 + 8 / 256) / (link["device_read_gb_s"] * 1e9 * link["scale"])  # of a tile of compact state
        one, two = rows[2, 1]["modelled_update_s"], rows[2, 2]["modelled_update_s"]
        delivery = 4 * (one - read * (1 + 4 * 5 / 3))
        self.assertGreater(delivery, 0)
        self.assertAlmostEqual(two - read * (1 + 2 * 5 / 3), delivery / 2, delta=1e-3 * one)

    def test_what_is_wrong_is_said(self):
        for options, sentence in (
            (["--program", "/nowhere"], "/nowhere"),
            (["--devices", "0"], "--devices"),
            (["--lines", "/proc/nowhere"], "/proc/nowhere"),
            (["--site", "cluster/nowhere"], "cluster/nowhere"),
        ):
            done = program.call(
                EXPERIMENTS / "devices", "--quick", "--out", self.out, "--program", program.PROGRAM_FORKED, *options
            )
            self.assert_refusal(done, sentence)
        for name in ("restart_time", "unequal_drives"):
            self.assert_refusal(
                program.call(program.ROOT / "bench" / name, "--folder", "/proc/nowhere", "--folder", "/proc/nowhere"),
                "/proc/nowhere",
            )
        self.assert_refusal(program.run(0, "report", self.folder / "nowhere"), self.folder / "nowhere")


if __name__ == "__main__":
    program.main()
