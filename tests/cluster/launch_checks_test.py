"""launch/mpirun: one clear sentence when a host lacks something."""

import importlib.util
import re
import shutil
import subprocess
import sys
import unittest

import cluster
import program


class Checks(cluster.Cluster):
    def refused(self, facts, *options, ranks=8, code=2, **keys):
        done = self.mpirun("--check", *options, ranks=ranks, **keys)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assert_states(done.stderr, *(facts if isinstance(facts, tuple) else (facts,)))

    def remote_that(self, action):
        """A replacement for the site's remote program that pipes nst3's answers through `action`."""
        return self.with_remote(
            f'if [[ $1 == nst3 ]]; then {cluster.SITE}/rsh "$@" | {action}\nelse exec {cluster.SITE}/rsh "$@"; fi'
        )

    def test_hosts_and_devices_that_are_short_are_refused(self):
        self.refused(("8 ranks", 2, 9), ranks=9, train__global_batch=9)
        self.refused(("nst1", "4 devices", "hosts.devices", "2 ranks", 6), csd__per_rank=3)

    def test_a_site_that_the_doctor_writes_of_hosts_trains(self):
        site, rsh = self.folder / "found", cluster.SITE / "rsh"
        keys = ("--set", f"hosts.remote={rsh}", "--set", "csd.path=[/mnt/csd0, /mnt/csd1]")
        said = cluster.must(program.PROGRAM, "doctor", "--write-site", site, *self.hosts[:2], *keys)
        self.assert_states(said, "missing: checkpoint.path", "missing: csd.rated_tbw")
        text = (site / "site.toml").read_text()
        self.assert_states(
            text, f'names = ["{self.hosts[0]}", "{self.hosts[1]}"]', "network_gb_s = 1.25", "per_rank = 2"
        )
        text = text.replace("[hosts]", f'[hosts]\nhead = "{self.hosts[0]}"')
        (site / "site.toml").write_text(text.replace("# path =", f'path = "{self.folder}/checkpoints"'))
        self.site = site
        done = self.mpirun(ranks=2, train__steps=1)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_unfinished_run_is_refused_where_it_would_be_in_the_way(self):
        self.train(train__stop_at=2)
        self.refused(("host nst1", "/mnt/csd0/state", "step 2 of 40", "--resume"))
        for option in ("--resume", "--resume-if-any", "--fresh"):
            done = self.mpirun("--check", option)
            self.assertEqual(done.returncode, 0, done.stderr)
        for host in ("nst1", "nst2", "nst4"):
            for device in range(4):
                shutil.rmtree(cluster.DISKS / host / f"csd{device}")
        self.refused(("host nst1", f"{self.folder}/checkpoints", "step 2 of 40"))
        elsewhere = {"checkpoint__path": f'"{self.folder}/other"'}
        self.refused(("host nst3", "/mnt/csd0/state", "step 2 of 40"), **elsewhere)

    def test_missing_text_is_refused(self):
        self.refused(("host nst1", "/nowhere/text"), data__train='"/nowhere/text"')

    def test_a_host_without_its_link_is_refused(self):
        cluster.vhosts("link", "nst3", "down")
        try:
            self.refused(("host nst3", "eth0", "hosts.interface"))
        finally:
            cluster.vhosts("link", "nst3", "up")

    def test_a_full_disk_is_refused(self):
        # A small file system on the host's second device, mounted at the folder that its disk is bound from.
        folder = cluster.DISKS / "nst1/csd1"
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
        try:
            self.refused(("host nst1", "/mnt/csd1/state"))
        finally:
            subprocess.run(["umount", folder], check=True)

    def test_a_folder_that_is_a_file_is_refused(self):
        (cluster.DISKS / "nst2/csd0").write_text("")
        self.refused(("host nst2", "/mnt/csd0/state"))

    def test_another_build_is_refused(self):
        self.refused(("host nst3", "build"), **self.remote_that("sed 's/^program_xxh3 ./program_xxh3 x/'"))
        self.refused(("host nst3", "build"), **self.remote_that("sed 's/^commit ./commit x/'"))

    def test_other_text_is_refused(self):
        self.refused(("host nst3", "text"), **self.remote_that("sed 's/^data_xxh3 ./data_xxh3 x/'"))

    def test_a_wrong_clock_is_refused(self):
        for seconds, word in ((-60, "slow"), (60, "fast")):
            shift = f"awk '/^time_us/ {{$2 = sprintf(\"%.0f\", $2 + {seconds * 1000000})}} {{print}}'"
            self.refused(word, **self.remote_that(shift))

    @unittest.skipIf(
        importlib.util.find_spec("nearstep") is None, "this Python has no nearstep: launch/setup installs it"
    )
    def test_a_script_has_the_checks_of_a_config_and_those_of_its_python(self):
        other = self.folder / "other"
        python = cluster.program.make_script(
            self.folder / "a user's python",
            f'[[ -e {other} ]] || exec {sys.executable} "$@"\n[[ $(hostname) != nst3 ]] || exec cat {other}\necho 4567',
        )
        site = self.site / "site.toml"
        site.write_text(re.sub(r"(?m)^names = .*", 'names = ["nst1", "nst3"]', site.read_text()))

        def check():
            return cluster.call(
                "env", f"NEARSTEP_PYTHON={python}", "launch/mpirun", cluster.SCRIPT, self.site, "-n", 4, "--check"
            )

        done = check()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 ranks on 2 hosts (nst1 nst3)", done.stderr)
        other.mkdir()  # cat fails
        done = check()
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assert_states(done.stderr, "host nst3", python, "nearstep", f"{other}: Is a directory")
        other.rmdir()
        other.write_text("0123\n")
        done = check()
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assert_states(done.stderr, "host nst3", "nearstep", python, "nst1")
        remote = self.remote_that("sed 's/^data_xxh3 ./data_xxh3 x/'")["hosts__remote"]
        site.write_text(re.sub(r"(?m)^remote = .*", f"remote = {remote}", site.read_text()))
        done = check()
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assert_states(done.stderr, "host nst3", cluster.SCRIPT, "nst1")

    def test_a_host_that_does_not_answer_is_refused(self):
        self.refused("host nst9: vhosts: there is no virtual host", hosts__names='["nst1","nst9"]', ranks=4)
        self.refused(
            "host nst3 could not be checked (no route)",
            code=1,
            **self.remote_that("(echo no route >&2; exit 255); exit 255"),
        )
        self.refused("nst3 could not be checked (code 3 and no word)", code=1, **self.remote_that("exit 3; exit 3"))
        self.refused("is no program", hosts__remote='"no-such-remote"')


if __name__ == "__main__":
    cluster.main()
