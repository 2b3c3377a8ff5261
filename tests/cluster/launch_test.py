"""launch/mpirun: ranks, devices and transports on the hosts of a site."""

import json
import re
import subprocess

import cluster


class Launch(cluster.Cluster):
    def test_state_lies_on_the_devices_of_each_rank_s_host(self):
        self.train(train__stop_at=2)
        found = sorted(str(path.relative_to(cluster.DISKS)) for path in cluster.DISKS.glob("*/csd*/state/*.state"))
        expected = [
            f"nst{rank // 2 + 1}/csd{2 * (rank % 2) + device}/state/rank-{rank}.device-{device}.state"
            for rank in range(8)
            for device in range(2)
        ]
        self.assertEqual(found, sorted(expected))

    def test_hosts_of_one_machine_share_its_cores(self):
        threads, environment = self.noting_threads()
        done = subprocess.run(
            [
                "launch/mpirun",
                "configs/tiny.toml",
                self.site,
                "-n",
                "4",
                *self.settings(hosts__ranks=1, hosts__devices=2, train__stop_at=1),
            ],
            cwd=cluster.program.ROOT,
            env=environment,
            text=True,
            capture_output=True,
            timeout=cluster.program.HANG_S,
        )
        self.assertIn(done.returncode, (0, 75), done.stdout + done.stderr)
        cores = len(cluster.os.sched_getaffinity(0))
        self.assertEqual(threads.read_text().split(), 4 * [str(max(1, cores // 4))])

    def test_hosts_give_the_same_result_as_one_machine(self):
        keys = {
            "train__stop_at": 4,
            "csd__per_rank": 1,
            "placement__gradients": "replicated",
            **cluster.program.SHORT_ROWS,
        }
        hosts = self.train(**keys)
        arguments = self.arguments(**keys)
        summary = self.folder / "one.json"
        cluster.must("launch/ranks", 8, cluster.program.PROGRAM_FORKED, *arguments, "--json", summary)
        one = json.loads(summary.read_text())
        self.assert_same_bits(hosts, one)

    def test_storage_hosts_hold_the_state_of_the_others(self):
        usual = self.train("--fresh", ranks=4, hosts__names='["nst1", "nst2"]', train__stop_at=4, csd__per_rank=1)
        stored = self.train(
            "--fresh",
            ranks=6,
            hosts__names='["nst1", "nst2"]',
            hosts__storage='["nst3", "nst4"]',
            train__stop_at=4,
            csd__per_rank=2,
        )
        self.assert_same_bits(stored, usual)
        self.assertEqual(
            {path.relative_to(cluster.DISKS).parts[0] for path in cluster.DISKS.glob("*/csd*/state/rank-[45].*.state")},
            {"nst3", "nst4"},
        )

    def test_a_site_may_pin_ucx_between_hosts(self):
        keys = {"train__steps": 3, "csd__per_rank": 1}
        whole = self.train(ranks=4, **keys)
        pinned = [
            "--mca",
            "pml",
            "ucx",
            "--mca",
            "pml_ucx_tls",
            "any",
            "--mca",
            "pml_ucx_devices",
            "any",
            "-x",
            "UCX_TLS=tcp,self",
        ]
        before = cluster.vhosts("bytes")
        over_ucx = self.train("--traffic", ranks=4, hosts__mpirun_options=json.dumps(pinned), **keys)
        self.assertEqual(over_ucx["masters_xxh3"], whole["masters_xxh3"])
        sent = [int(re.search(r"nst1 tx_bytes=(\d+)", text)[1]) for text in (before, cluster.vhosts("bytes"))]
        self.assertGreater(sent[1] - sent[0], over_ucx["network_sent_bytes"][0])

    def test_hosts_that_see_one_folder_keep_each_other_s_manifests(self):
        keys = {"train__steps": 5, "csd__per_rank": 1, "csd__path": f'["{self.folder / "shared"}"]'}
        whole = self.train(**keys)
        self.train(train__stop_at=3, **keys)
        summary = self.folder / "resumed.json"
        for stop, first in ((3, 0), (5, 4)):  # the first start takes no step
            done = self.mpirun("--resume", "--json", summary, train__stop_at=stop, **keys)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(json.loads(summary.read_text())["first_step"], first)
            self.assertNotIn("removed", done.stdout)
            self.assertEqual(len(list((self.folder / "shared").glob("*.manifest"))), 8)
        self.assertEqual(json.loads(summary.read_text())["masters_xxh3"], whole["masters_xxh3"])

    def test_the_network_between_hosts_is_measured_and_planned_with(self):
        for host in cluster.HOSTS:
            cluster.vhosts("rate", host, "400mbit")
        rates = self.folder / "network.json"
        try:
            done = self.mpirun("--bench-network", "--rounds", 3, "--most-bytes", 1 << 20, "--json", rates)
        finally:
            for host in cluster.HOSTS:
                cluster.vhosts("unrate", host)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [json.loads(line) for line in rates.read_text().splitlines()]
        self.assertEqual([row["nodes"] for row in rows if "latency_us" in row], [1, 2, 4])
        self.assertEqual({row["ranks_per_node"] for row in rows}, {2})
        for row in rows:
            if row.get("message_bytes") == 1 << 20 and row["nodes"] > 1:
                self.assertEqual(row["sent_bytes"], (row["nodes"] - 1) * 2 * row["message_bytes"])
                # The burst that the cable's token bucket lets through is small in comparison.
                self.assertLess(row["gb_s"], 1.2 * 0.05)
        done = cluster.call(
            cluster.program.PROGRAM,
            "plan",
            "configs/gpt-7b.toml",
            "--site",
            "cluster/csd-pod",
            "--nodes",
            "4",
            "--calibrate",
            rates,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 nodes, fit, 0.0", done.stdout)


if __name__ == "__main__":
    cluster.main()
