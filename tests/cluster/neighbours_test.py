"""A host that is not like its neighbours: each row of the table in docs/cluster.md that launch_test.py has not."""
import json
import os
import pathlib
import re
import shlex
import subprocess

import cluster

ODD = "nst3"


class Neighbours(cluster.Cluster):
    """Four hosts of one rank each, of which one differs."""

    def keys(self, **more):
        return {"hosts__ranks": 1, "csd__per_rank": 1, "train__stop_at": 4, **cluster.program.SHORT_ROWS, **more}

    def where_odd(self, prefix):
        """A remote program that runs all commands of the odd host behind these words of a shell."""
        remote = self.folder / "remote"
        remote.write_text(f'#!/bin/bash\nhost=$1\nshift\n[[ $host != {ODD} ]] || set -- {shlex.quote(prefix)} "$@"\nexec {cluster.SITE}/rsh "$host" "$@"\n')
        remote.chmod(0o755)
        return self.keys(hosts__remote=f'"{remote}"')

    def usual(self, **more):
        return self.train(ranks=4, **self.keys(**more))

    def odd(self, prefix, **more):
        return self.train(ranks=4, **{**self.where_odd(prefix), **more})

    def test_those_that_change_no_result(self):
        """A home that is not there, a host that joins late, and one with little memory."""
        usual = self.usual()
        meminfo = self.folder / "meminfo"
        meminfo.write_text(re.sub(r"(MemAvailable: +)\d+", r"\g<1>65536", pathlib.Path("/proc/meminfo").read_text()))
        for prefix in ("export HOME=/nowhere;", "sleep 5;", f"mount --bind {meminfo} /proc/meminfo &&"):
            with self.subTest(prefix):
                self.assert_same_bits(self.odd(prefix), usual)

    def test_another_processor_rounds_otherwise_and_repeats(self):
        usual = self.usual()
        one, other = (self.odd("export ATEN_CPU_CAPABILITY=default;") for _ in range(2))
        self.assert_same_bits(one, other)
        self.assert_close(one["losses"], usual["losses"], 1e-3)

    def test_fewer_cores_give_all_ranks_fewer_threads(self):
        threads, environment = self.noting_threads()
        remote = self.folder / "remote"
        remote.write_text(f'#!/bin/bash\n[[ $1 == {ODD} ]] && cores=3 || cores=8\n'
                          f'{cluster.SITE}/rsh "$@" | sed "s/^machine .*/machine $1/; s/^cores .*/cores $cores/"\n')
        remote.chmod(0o755)
        done = subprocess.run(["launch/mpirun", "configs/tiny.toml", self.site, "-n", "4", "--fresh", *self.settings(**self.keys(hosts__remote=f'"{remote}"', train__stop_at=1))],
                              cwd=cluster.program.ROOT, env=environment, text=True, capture_output=True, timeout=cluster.program.HANG_S)
        self.assertIn(done.returncode, (0, 75), done.stdout + done.stderr)
        self.assertEqual(threads.read_text().split(), 4 * ["3"])

    def test_a_slow_one_is_named(self):
        """Its products use one number at a time."""
        metrics = self.folder / "metrics.jsonl"
        keys = self.where_odd("export ATEN_CPU_CAPABILITY=default DNNL_MAX_CPU_ISA=SSE41 ONEDNN_MAX_CPU_ISA=SSE41;")
        done = self.mpirun("--fresh", "--metrics", metrics, ranks=4, **{**keys, "train__stop_at": 12})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        steps = [json.loads(line) for line in metrics.read_text().splitlines() if '"loss"' in line]
        slow = sum(step["slowest_rank"] == 2 and step["slowest_times"] > 1.5 for step in steps)
        self.assertGreater(slow, 6, steps)
        self.assertRegex(done.stdout, rf"rank 2 on host {ODD} computed the longest in {slow} of 12 steps, [\d.]+ times as long as the median rank")

    def slow_disk(self):
        """A prefix that limits the host's drive to 4 MB/s, as control groups of version 1 can."""
        mounted = subprocess.run(["findmnt", "-n", "-t", "cgroup", "-O", "blkio", "-o", "TARGET"], text=True, capture_output=True).stdout.split()
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
        slow, usual = self.slow_disk(), self.usual(train__stop_at=12)
        metrics = self.folder / "metrics.jsonl"
        summary = self.folder / "summary.json"
        keys = {**self.where_odd(slow), "train__stop_at": 12}
        done = self.mpirun("--fresh", "--metrics", metrics, "--json", summary, ranks=4, **keys)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assert_same_bits(json.loads(summary.read_text()), usual)
        steps = [json.loads(line) for line in metrics.read_text().splitlines() if '"loss"' in line]
        self.assertGreater(sum(step["slowest_devices_rank"] == 2 and step["slowest_devices_times"] > 1.5 for step in steps), 6, steps)
        self.assertRegex(done.stdout, rf"the devices of rank 2 on host {ODD} updated their state the longest in \d+ of 12 steps, [\d.]+ times as long")
        done = self.mpirun("--fresh", "--json", summary, ranks=4, **{**keys, "csd__speed": '"auto"'})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assert_same_bits(json.loads(summary.read_text()), usual)
        shares = [float(share) for share in re.findall(r"\(([\d.]+) %\)", done.stdout)]
        self.assertLess(shares[2], min(shares[:2] + shares[3:]), done.stdout)

    def refused(self, prefix, sentence, **more):
        done = self.mpirun("--check", "--fresh", ranks=4, **{**self.where_odd(prefix), **more})
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertRegex(done.stderr, f"host {ODD}: .*{sentence}")

    def test_a_full_temporary_folder_is_refused(self):
        # The checkout may lie in /tmp.
        root = cluster.program.ROOT
        self.refused(f"mount --bind {root} /mnt && mount -t tmpfs -o size=64k tmpfs /tmp && mkdir -p {root} && mount --bind /mnt {root} && cd {root} &&",
                     "The temporary folder /tmp has .* of free space")

    def test_too_little_memory_for_a_state_in_memory_is_refused(self):
        self.refused("mount -t tmpfs -o size=64k tmpfs /dev/shm &&", 'csd.path "/dev/shm/.*" has .* free', csd__tiers__memory=0.001)

    def test_a_storage_host_needs_no_text(self):
        others = {"hosts__names": '["nst1","nst2","nst4"]'}
        usual = self.train(ranks=3, **self.keys(**others))
        hides = f"mount --bind /dev/null {self.text} &&"
        self.refused(hides, "text")
        self.assert_same_bits(self.odd(hides, **others, hosts__storage=f'["{ODD}"]'), usual)


if __name__ == "__main__":
    cluster.main()
