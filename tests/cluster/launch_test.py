"""launch/mpirun: ranks, devices and hosts of a site, and one clear sentence when a host lacks something."""
import importlib.util
import pathlib
import re
import signal
import subprocess
import sys
import unittest

import cluster

SCRIPT = "tests/cluster/train_script.py"
DISKS = cluster.scratch() / "disks"


class Launch(cluster.Cluster):
    def refused(self, sentence, *options, ranks=8, code=2, **keys):
        done = self.mpirun("--check", *options, ranks=ranks, **keys)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn(sentence, done.stderr)

    def remote_that(self, action):
        """A replacement for the site's remote program that pipes nst3's answers through `action`."""
        remote = self.folder / "remote"
        remote.write_text(f"#!/bin/bash\nif [[ $1 == nst3 ]]; then {cluster.SITE}/rsh \"$@\" | {action}\n"
                          f"else exec {cluster.SITE}/rsh \"$@\"; fi\n")
        remote.chmod(0o755)
        return {"hosts__remote": f'"{remote}"'}

    def test_state_lies_on_the_devices_of_each_rank_s_host(self):
        self.train(train__stop_at=2)
        found = sorted(str(path.relative_to(DISKS)) for path in DISKS.glob("*/csd*/state/*.state"))
        expected = [f"nst{rank // 2 + 1}/csd{2 * (rank % 2) + device}/state/rank-{rank}.device-{device}.state"
                    for rank in range(8) for device in range(2)]
        self.assertEqual(found, sorted(expected))

    def test_hosts_of_one_machine_share_its_cores(self):
        threads, environment = self.noting_threads()
        done = subprocess.run(["launch/mpirun", "configs/tiny.toml", self.site, "-n", "4",
                               *self.settings(hosts__ranks=1, hosts__devices=2, train__stop_at=1)],
                              cwd=cluster.program.ROOT, env=environment, text=True, capture_output=True, timeout=cluster.program.HANG_S)
        self.assertIn(done.returncode, (0, 75), done.stdout + done.stderr)
        cores = len(cluster.os.sched_getaffinity(0))
        self.assertEqual(threads.read_text().split(), 4 * [str(max(1, cores // 4))])

    def test_hosts_give_the_same_result_as_one_machine(self):
        keys = {"train__stop_at": 4, "csd__per_rank": 1, "placement__gradients": "replicated", **cluster.program.SHORT_ROWS}
        hosts = self.train(**keys)
        arguments = self.arguments(**keys)
        summary = self.folder / "one.json"
        cluster.must("launch/ranks", 8, cluster.program.PROGRAM_FORKED, *arguments, "--json", summary)
        one = cluster.json.loads(summary.read_text())
        self.assert_same_bits(hosts, one)

    def test_storage_hosts_hold_the_state_of_the_others(self):
        usual = self.train("--fresh", ranks=4, hosts__names='["nst1", "nst2"]', train__stop_at=4, csd__per_rank=1)
        stored = self.train("--fresh", ranks=6, hosts__names='["nst1", "nst2"]', hosts__storage='["nst3", "nst4"]', train__stop_at=4, csd__per_rank=2)
        self.assert_same_bits(stored, usual)
        self.assertEqual({path.relative_to(DISKS).parts[0] for path in DISKS.glob("*/csd*/state/rank-[45].*.state")}, {"nst3", "nst4"})

    def test_a_site_may_pin_ucx_between_hosts(self):
        keys = {"train__steps": 3, "csd__per_rank": 1}
        whole = self.train(ranks=4, **keys)
        pinned = ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca", "pml_ucx_devices", "any", "-x", "UCX_TLS=tcp,self"]
        before = cluster.vhosts("bytes")
        over_ucx = self.train("--traffic", ranks=4, hosts__mpirun_options=cluster.json.dumps(pinned), **keys)
        self.assertEqual(over_ucx["masters_xxh3"], whole["masters_xxh3"])
        sent = [int(re.search(r"nst1 tx_bytes=(\d+)", text)[1]) for text in (before, cluster.vhosts("bytes"))]
        self.assertGreater(sent[1] - sent[0], over_ucx["network_sent_bytes"][0])

    def test_a_killed_run_resumes_on_the_same_hosts(self):
        whole = self.train("--fresh", train__steps=30, csd__per_rank=1)
        metrics = self.folder / "metrics.jsonl"
        options = ["--metrics", str(metrics), *self.settings(train__steps=30, csd__per_rank=1)]
        running = subprocess.Popen(["launch/mpirun", "configs/tiny.toml", self.site, "-n", "8", "--fresh", *options],
                                   cwd=cluster.program.ROOT, env=cluster.environment(), text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        cluster.wait_for_steps(metrics, 8, running.poll)
        cluster.kill_a_rank_on("nst2")
        output, _ = running.communicate(timeout=cluster.program.HANG_S)
        self.assertNotEqual(running.returncode, 0, output)
        done = self.mpirun("--resume", "--json", self.folder / "resumed.json", train__steps=30, csd__per_rank=1)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("resumed from the state files", done.stdout)
        resumed = cluster.json.loads((self.folder / "resumed.json").read_text())
        self.assertGreaterEqual(resumed["first_step"], 8)  # a step's line is written before its commit
        self.assertEqual(resumed["masters_xxh3"], whole["masters_xxh3"])

    def test_hosts_that_see_one_folder_keep_each_other_s_manifests(self):
        keys = {"train__steps": 5, "csd__per_rank": 1, "csd__path": f'["{self.folder / "shared"}"]'}
        whole = self.train(**keys)
        self.train(train__stop_at=3, **keys)
        summary = self.folder / "resumed.json"
        for stop in (3, 5):  # the first start takes no step
            done = self.mpirun("--resume", "--json", summary, train__stop_at=stop, **keys)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("resumed from the state files at step 3", done.stdout)
            self.assertNotIn("removed", done.stdout)
            self.assertEqual(len(list((self.folder / "shared").glob("*.manifest"))), 8)
        self.assertEqual(cluster.json.loads(summary.read_text())["masters_xxh3"], whole["masters_xxh3"])

    def test_a_notice_here_reaches_the_ranks_of_all_hosts(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(number):
                metrics = self.folder / f"{number}.jsonl"
                checkpoints = self.folder / f"checkpoints-{number}"
                keys = {"train__steps": 20000, "csd__per_rank": 1, "csd__durability": '"checkpoint"', "checkpoint__path": f'"{checkpoints}"'}
                running = subprocess.Popen(["launch/mpirun", "configs/tiny.toml", self.site, "-n", "4", "--fresh", "--metrics", metrics,
                                            *self.settings(**keys)], cwd=cluster.program.ROOT, env=cluster.environment(), text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                cluster.wait_for_steps(metrics, 3, running.poll)
                running.send_signal(number)
                output, _ = running.communicate(timeout=cluster.program.HANG_S)
                self.assertEqual(running.returncode, 75, output)
                self.assertIn("stopped on request after step", output)
                self.assertEqual(len(list(checkpoints.glob("step-????????.h5"))), 1)

    def test_a_cut_link_ends_all_ranks_and_names_the_host(self):
        self.check_cut_link(r"in a transfer for \d+ s \(seen on host nst[12]\)", ranks=8, csd__per_rank=1)

    def test_hosts_and_devices_that_are_short_are_refused(self):
        self.refused("takes 8 ranks, 2 on each host, and 9 are asked for", ranks=9, train__global_batch=9)
        self.refused("Host nst1 has 4 devices (hosts.devices) and its 2 ranks ask for 6", csd__per_rank=3)

    def test_an_unfinished_run_is_refused_where_it_would_be_in_the_way(self):
        self.train(train__stop_at=2)
        self.refused("host nst1: The folder /mnt/csd0/state holds a run that stopped at step 2 of 40: go on with --resume")
        for option in ("--resume", "--resume-if-any", "--fresh"):
            done = self.mpirun("--check", option)
            self.assertEqual(done.returncode, 0, done.stderr)
        for host in ("nst1", "nst2", "nst4"):
            for device in range(4):
                cluster.shutil.rmtree(DISKS / host / f"csd{device}")
        self.refused(f"host nst1: The folder {self.folder}/checkpoints holds a run that stopped at step 2 of 40")
        elsewhere = {"checkpoint__path": f'"{self.folder}/other"'}
        self.refused("host nst3: The folder /mnt/csd0/state holds a run that stopped at step 2 of 40", **elsewhere)

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
        rows = [cluster.json.loads(line) for line in rates.read_text().splitlines()]
        self.assertEqual([row["nodes"] for row in rows if "latency_us" in row], [1, 2, 4])
        self.assertEqual({row["ranks_per_node"] for row in rows}, {2})
        for row in rows:
            if row.get("message_bytes") == 1 << 20 and row["nodes"] > 1:
                self.assertEqual(row["sent_bytes"], (row["nodes"] - 1) * 2 * row["message_bytes"])
                # The burst that the cable's token bucket lets through is small in comparison.
                self.assertLess(row["gb_s"], 1.2 * 0.05)
        done = cluster.call(cluster.program.PROGRAM, "plan", "configs/gpt-7b.toml", "--site", "cluster/csd-pod",
                            "--nodes", "4", "--calibrate", rates)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("network as measured: row 4 nodes, fit, 0.0", done.stdout)

    def test_missing_text_is_refused(self):
        self.refused("host nst1: The data path", data__train='"/nowhere/text"')

    def test_a_host_without_its_link_is_refused(self):
        cluster.vhosts("link", "nst3", "down")
        try:
            self.refused("host nst3: The network interface eth0 (hosts.interface) is not up")
        finally:
            cluster.vhosts("link", "nst3", "up")

    def test_a_full_disk_is_refused(self):
        # A small file system on the host's second device, mounted at the folder that its disk is bound from.
        folder = DISKS / "nst1/csd1"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
        try:
            self.refused('host nst1: csd.path "/mnt/csd1/state" has')
        finally:
            subprocess.run(["umount", folder], check=True)

    def test_a_folder_that_is_a_file_is_refused(self):
        (DISKS / "nst2/csd0").write_text("")
        self.refused('host nst2: csd.path "/mnt/csd0/state" cannot be made')

    def test_another_build_is_refused(self):
        self.refused("host nst3 has another build", **self.remote_that("sed 's/^program_xxh3 ./program_xxh3 x/'"))
        self.refused("host nst3 has another build", **self.remote_that("sed 's/^commit ./commit x/'"))

    def test_other_text_is_refused(self):
        self.refused("host nst3 has other text", **self.remote_that("sed 's/^data_xxh3 ./data_xxh3 x/'"))

    def test_a_wrong_clock_is_refused(self):
        for seconds, word in ((-60, "slow"), (60, "fast")):
            shift = f"awk '/^time_us/ {{$2 = sprintf(\"%.0f\", $2 + {seconds * 1000000})}} {{print}}'"
            self.refused(word, **self.remote_that(shift))

    @unittest.skipIf(importlib.util.find_spec("nearstep") is None, "this Python has no nearstep: launch/setup installs it")
    def test_a_script_has_the_checks_of_a_config_and_those_of_its_python(self):
        python, other = self.folder / "a user's python", self.folder / "other"
        python.write_text(f'#!/bin/bash\n[[ -e {other} ]] || exec {sys.executable} "$@"\n[[ $(hostname) != nst3 ]] || exec cat {other}\necho 4567\n')
        python.chmod(0o755)
        site = self.site / "site.toml"
        site.write_text(re.sub(r"(?m)^names = .*", 'names = ["nst1", "nst3"]', site.read_text()))

        def check():
            return cluster.call("env", f"NEARSTEP_PYTHON={python}", "launch/mpirun", SCRIPT, self.site, "-n", 4, "--check")

        done = check()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 ranks on 2 hosts (nst1 nst3), all checked", done.stderr)
        other.mkdir()  # cat fails
        done = check()
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn(f"host nst3: {python} cannot use the package nearstep (cat: {other}: Is a directory)", done.stderr)
        other.rmdir()
        other.write_text("0123\n")
        done = check()
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn(f"host nst3 has another package nearstep for {python} than nst1", done.stderr)
        remote = self.remote_that("sed 's/^data_xxh3 ./data_xxh3 x/'")["hosts__remote"]
        site.write_text(re.sub(r"(?m)^remote = .*", f"remote = {remote}", site.read_text()))
        done = check()
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn(f"host nst3 has another script {SCRIPT} than nst1", done.stderr)

    def test_a_host_that_does_not_answer_is_refused(self):
        self.refused("host nst9: vhosts: there is no virtual host", hosts__names='["nst1","nst9"]', ranks=4)
        self.refused("host nst3 could not be checked (no route)", code=1, **self.remote_that("(echo no route >&2; exit 255); exit 255"))
        self.refused("is no program", hosts__remote='"no-such-remote"')


if __name__ == "__main__":
    cluster.main()
