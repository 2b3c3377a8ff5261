"""Shaped links limit real transfers to their rates, for all ranks of a node together, and change nothing else."""

import json
import pathlib
import time

import program

# Bytes per second at the scale below; a step of configs/tiny.toml takes about a second on them.
SCALE = 0.005
SITE = f"""[site]
name = "small-links"

[csd]
rated_tbw = 1

[link]
device_read_gb_s = 3.0
device_write_gb_s = 1.8
host_gb_s = 3.6
scale = {SCALE}
"""
DEVICE_READ, DEVICE_WRITE, HOST = (rate * 1e9 * SCALE for rate in (3.0, 1.8, 3.6))
COMPACT = "su+o+c:compress.codec=topk:csd.state=compact"


class Links(program.Scenario):
    def setUp(self):
        super().setUp()
        self.site = self.folder / "small-links" / "site.toml"
        self.site.parent.mkdir()
        self.site.write_text(SITE)

    def compare(self, ranks, modes, devices):
        summary = self.folder / "compare.json"
        done = program.succeed(
            ranks,
            "compare",
            *self.arguments()[1:],
            "--site",
            self.site,
            "--steps",
            3,
            "--modes",
            modes,
            "--devices",
            devices,
            "--json",
            summary,
        )
        return json.loads(summary.read_text()), done.stdout

    def test_no_phase_is_faster_than_its_links_and_the_model_orders_the_modes_as_the_paper(self):
        runs, printed = self.compare(2, f"base,su,su+o,{COMPACT}", "1,2")
        self.assertEqual(
            [(run["column"], run["devices"]) for run in runs],
            [(column, devices) for devices in (2, 4) for column in ("base", "su", "su+o", COMPACT)],
        )
        self.assertEqual([run["state"] for run in runs[:4]], ["fp32", "fp32", "fp32", "compact"])
        self.assertEqual([run["codec"] for run in runs[:4]], ["dense", "dense", "dense", "topk"])
        for run in runs:
            with self.subTest(column=run["column"], devices=run["devices"]):
                update, devices = run["phases_s"]["update"], run["devices"]
                self.assertEqual(run["links"]["scale"], SCALE)
                # Both ranks share the host link, so bytes are those of both.
                seconds_of = lambda bytes_per_parameter, rate: bytes_per_parameter * run["parameters"] / rate
                host, internal = (run["bytes_per_parameter"][link] for link in ("host_link", "device_internal"))
                to_host = host["state_read"] + host["gradients_read"] + host["parameters"]
                self.assertGreaterEqual(update, 0.99 * seconds_of(to_host, HOST))
                self.assertGreaterEqual(update, 0.99 * seconds_of(host["state_write"], HOST))
                reads = seconds_of(internal["read"], DEVICE_READ * devices)
                writes = seconds_of(internal["write"], DEVICE_WRITE * devices)
                self.assertGreaterEqual(update, 0.99 * (reads + writes if run["mode"] == "su" else max(reads, writes)))
                self.assertGreaterEqual(run["phases_s"]["backward"], 0.99 * seconds_of(host["gradients_write"], HOST))
        # On a loaded machine measured times may be out of order; cluster/experiments compares those.
        of = {(run["column"], run["devices"]): run["predicted_s"]["update"] for run in runs}
        for devices in (2, 4):
            self.assertGreater(of["su", devices], of["su+o", devices])
            self.assertGreater(of["su+o", devices], of[COMPACT, devices])
        self.assertGreater(of["su+o", 2], of["su+o", 4])
        self.assertIn("device read 15 MB/s", printed)

    def test_state_in_memory_takes_no_time_of_drives(self):
        keys = {"csd__per_rank": 1, "train__steps": 3, "csd__subgroup_tiles": 1, "flags": ["--site", self.site]}
        drives = self.train(state="drives", **keys)
        of_rank = 12 * drives["parameters"] * 1e-9  # GB, in two generations
        both, memory = (
            self.train(state=f"memory-{share}", csd__tiers__memory=share * of_rank, **keys) for share in (0.5, 2)
        )
        self.assertAlmostEqual(both["modelled_s"]["update"] / drives["modelled_s"]["update"], 0.5, delta=0.1)
        self.assertEqual(memory["modelled_s"]["update"], 0)
        for summary in (both, memory):
            self.assert_same_bits(summary, drives)

    def test_a_run_says_how_fast_it_wears_its_drives(self):
        written = {}
        for state in ("fp32", "q8", "compact"):
            run = self.train(
                csd__state=state,
                csd__subgroup_tiles=4,
                train__steps=4,
                ranks=1,
                flags=["--site", self.site],
                **{"link__scale": 1},
            )
            per_step = run["endurance"]["written_bytes_per_step"]
            self.assertEqual(len(per_step), run["devices"])
            internal = run["bytes_per_parameter"]["device_internal"]["write"] * run["parameters"]
            # The bytes counted on the link, plus a header of 4 KiB per subgroup.
            self.assertAlmostEqual(sum(per_step), internal, delta=8 * 4096)
            # The start values and four steps.
            self.assertAlmostEqual(sum(run["endurance"]["written_bytes"]), 5 * sum(per_step), delta=1)
            days = 1e12 / max(per_step) * run["seconds"] / 4 / 86400
            self.assertAlmostEqual(run["endurance"]["days_to_rated_tbw"], days, delta=days * 1e-6)
            written[state] = sum(per_step)
        self.assertAlmostEqual(written["q8"] / written["fp32"], 6.03 / 12, delta=0.02)
        self.assertAlmostEqual(written["compact"] / written["fp32"], 4.03 / 12, delta=0.02)

    def test_a_killed_run_leaves_no_shared_memory_behind(self):
        names = lambda: {path.name for path in pathlib.Path("/dev/shm").glob("nearstep-links-*")}
        before = names()
        done = program.run(2, *self.arguments(link__host_gb_s=1), fault="rank=1 phase=after_scatter count=2")
        self.assertNotEqual(done.returncode, 0)
        end = time.monotonic() + program.HANG_S
        while names() - before and time.monotonic() < end:  # those of another run that just begins
            time.sleep(0.1)
        self.assertEqual(names() - before, set())


if __name__ == "__main__":
    program.main()
