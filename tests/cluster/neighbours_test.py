"""A host that is not like its neighbours: the rows of the table in docs/cluster.md that the tests of launch and
slow_host_test.py have not."""

import pathlib
import re
import subprocess

import cluster
import odd_host
from odd_host import ODD


class Neighbours(odd_host.OddHost):
    def test_those_that_change_no_result(self):
        """A home that is not there, a host that joins late, and one with little memory."""
        usual = self.usual()
        meminfo = self.folder / "meminfo"
        meminfo.write_text(re.sub(r"(MemAvailable: +)\d+", r"\g<1>65536", pathlib.Path("/proc/meminfo").read_text()))
        for prefix in ("export HOME=/nowhere;", "sleep 5;", f"mount --bind {meminfo} /proc/meminfo &&"):
            with self.subTest(prefix):
                self.assert_same_bits(self.odd(prefix), usual)

    def test_another_processor_rounds_otherwise_and_repeats(self):
        self.start_no_forks()
        usual = self.usual()
        one, other = (self.odd("export ATEN_CPU_CAPABILITY=default;") for _ in range(2))
        self.assert_same_bits(one, other)
        self.assert_close(one["losses"], usual["losses"], 1e-3)

    def test_fewer_cores_give_all_ranks_fewer_threads(self):
        threads, environment = self.noting_threads()
        remote = self.with_remote(
            f'[[ $1 == {ODD} ]] && cores=3 || cores=8\n{cluster.SITE}/rsh "$@" | sed "s/^machine .*/machine $1/; '
            's/^cores .*/cores $cores/"'
        )
        done = subprocess.run(
            [
                "launch/mpirun",
                "configs/tiny.toml",
                self.site,
                "-n",
                "4",
                "--fresh",
                *self.settings(**{**self.keys(**remote), "train__stop_at": 1}),
            ],
            cwd=cluster.program.ROOT,
            env=environment,
            text=True,
            capture_output=True,
            timeout=cluster.program.HANG_S,
        )
        self.assertIn(done.returncode, (0, 75), done.stdout + done.stderr)
        self.assertEqual(threads.read_text().split(), 4 * ["3"])

    def refused(self, prefix, sentence, **more):
        done = self.mpirun("--check", "--fresh", ranks=4, **{**self.where_odd(prefix), **more})
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertRegex(done.stderr, f"host {ODD}: .*{sentence}")

    def test_a_full_temporary_folder_is_refused(self):
        self.start_no_forks()  # they are asked for there
        # The checkout may lie in /tmp.
        root = cluster.program.ROOT
        self.refused(
            f"mount --bind {root} /mnt && mount -t tmpfs -o size=64k tmpfs /tmp && mkdir -p {root} && mount --bind "
            f"/mnt {root} && cd {root} &&",
            "The temporary folder /tmp has .* of free space",
        )

    def test_too_little_memory_for_a_state_in_memory_is_refused(self):
        self.refused(
            "mount -t tmpfs -o size=64k tmpfs /dev/shm &&",
            'csd.path "/dev/shm/.*" has .* free',
            csd__tiers__memory=0.001,
        )

    def test_a_storage_host_needs_no_text(self):
        others = {"hosts__names": '["nst1","nst2","nst4"]'}
        usual = self.train(ranks=3, **self.keys(**others))
        hides = f"mount --bind /dev/null {self.text} &&"
        self.refused(hides, "text")
        self.assert_same_bits(self.odd(hides, **others, hosts__storage=f'["{ODD}"]'), usual)


if __name__ == "__main__":
    cluster.main()
