"""A host whose processor or drive is slower than its neighbours': times are compared, so it runs alone."""

import json
import os
import pathlib
import re
import subprocess

import cluster
import odd_host
from odd_host import ODD


class SlowHost(odd_host.OddHost):
    def test_a_slow_one_is_named(self):
        """Matrix products on the slow host use one number at a time."""
        self.start_no_forks()
        metrics = self.folder / "metrics.jsonl"
        keys = self.where_odd("export ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=SSE41;")
        done = self.mpirun("--fresh", "--metrics", metrics, ranks=4, **{**keys, "train__stop_at": 12})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        steps = [json.loads(line) for line in metrics.read_text().splitlines() if '"loss"' in line]
        slow = sum(step["slowest_rank"] == 2 and step["slowest_times"] > 1.5 for step in steps)
        self.assertGreater(slow, 6, steps)
        self.assertRegex(done.stdout, rf"rank 2 on host {ODD} .*\b{slow} of 12 steps, [\d.]+ times")

    def test_a_slow_link_is_named(self):
        self.start_no_forks()
        metrics = self.folder / "metrics.jsonl"
        cluster.vhosts("rate", ODD, "20mbit")
        self.addCleanup(cluster.vhosts, "unrate", ODD)
        done = self.mpirun("--fresh", "--metrics", metrics, ranks=4, **self.where_odd(""), train__stop_at=6)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, rf"rank 2 on host {ODD} came late .* of 6 steps, .*bench network")

    def slow_disk(self):
        """A prefix that limits the host's drive to 4 MB/s, as control groups of version 1 can."""
        mounted = subprocess.run(
            ["findmnt", "-n", "-t", "cgroup", "-O", "blkio", "-o", "TARGET"], text=True, capture_output=True
        ).stdout.split()
        device = os.stat(cluster.scratch()).st_dev
        disk = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        whole = disk.parent if (disk / "partition").exists() else disk
        if not mounted or not (whole / "dev").exists():
            self.skipTest(f"the disk below {cluster.scratch()} cannot be slowed down by a control group of version 1")
        group = pathlib.Path(mounted[0], "nst-slow")
        group.mkdir(exist_ok=True)
        self.addCleanup(group.rmdir)
        for limit in ("read", "write"):
            (group / f"blkio.throttle.{limit}_bps_device").write_text(f"{(whole / 'dev').read_text().strip()} 4000000")
        return "mount -t cgroup -o blkio none /sys/fs/cgroup && echo $$ >/sys/fs/cgroup/nst-slow/cgroup.procs &&"

    def test_a_slow_drive_is_named_and_may_hold_less(self):
        self.start_no_forks()  # which are in another control group
        slow, usual = self.slow_disk(), self.usual(train__stop_at=6)
        metrics = self.folder / "metrics.jsonl"
        summary = self.folder / "summary.json"
        keys = {**self.where_odd(slow), "train__stop_at": 6}
        done = self.mpirun("--fresh", "--metrics", metrics, "--json", summary, ranks=4, **keys)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assert_same_bits(json.loads(summary.read_text()), usual)
        steps = [json.loads(line) for line in metrics.read_text().splitlines() if '"loss"' in line]
        self.assertGreater(
            sum(step["slowest_devices_rank"] == 2 and step["slowest_devices_times"] > 1.5 for step in steps), 3, steps
        )
        self.assertRegex(done.stdout, rf"rank 2 on host {ODD} .*\b\d+ of 6 steps, [\d.]+ times")
        done = self.mpirun("--fresh", "--json", summary, ranks=4, **{**keys, "csd__speed": '"auto"'})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assert_same_bits(json.loads(summary.read_text()), usual)
        shares = [float(share) for share in re.findall(r"\(([\d.]+) %\)", done.stdout)]
        self.assertLess(shares[2], min(shares[:2] + shares[3:]), done.stdout)


if __name__ == "__main__":
    cluster.main()
