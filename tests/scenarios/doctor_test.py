"""nearstep doctor agrees with what can be observed otherwise, and leaves no files behind. A run says what it does in a
few lines, and its progress fits a terminal."""

import fcntl
import json
import os
import pty
import shutil
import struct
import subprocess
import termios
import time
import unittest.mock

import program


class Doctor(program.Scenario):
    def report(self, ranks, *arguments):
        path = self.folder / "doctor.json"
        done = program.succeed(ranks, "doctor", *arguments, "--json", path)
        return json.loads(path.read_text()), done.stdout

    def run_finding(self):
        """Whether the run that arguments() names may begin, as preflight says."""
        words = self.arguments()[1:]
        found = self.report(0, *words)[0]["nodes"][0]["findings"]["run"]
        preflight = program.run(0, "preflight", *words)
        self.assertEqual(preflight.returncode == 0, found["may_begin"], preflight.stderr)
        self.assertIn(found["obstacle"] or "", preflight.stderr)
        return found

    def test_findings_are_those_of_the_machine(self):
        state = self.folder / "state"
        free = [shutil.disk_usage(self.folder).free]
        report, shown = self.report(0, "--set", f"csd.path=[{self.folder}, {state}/below]")
        free.append(shutil.disk_usage(self.folder).free)
        (node,) = report["nodes"]
        found = node["findings"]
        self.assertEqual((node["host"], node["kernel"]), (os.uname().nodename, os.uname().release))
        self.assertEqual(found["cpu"]["cpus"], os.cpu_count())
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "").split()
        self.assertLessEqual(set(found["cpu"]["features"]), set(flags))
        self.assertEqual(
            "avx512" in found["engine"]["usable"], {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags)
        )
        self.assertEqual(found["engine"]["chosen"], found["engine"]["usable"][-1])
        self.assertLessEqual(found["huge_pages"]["given_bytes"], found["huge_pages"]["asked_bytes"])
        self.assertEqual([found[f"state_folder_{i}"]["is_there"] for i in (0, 1)], [True, False])
        others = 0.05 * max(free) + 1e9  # what other programs may write and remove meanwhile
        self.assertGreater(found["state_folder_0"]["free_bytes"], min(free) - others)
        self.assertLess(found["state_folder_0"]["free_bytes"], max(free) + others)
        self.assertIn("csd.device", found["xrt"]["summary"])
        nccl = found["nccl_nvlink"]
        self.assertEqual(nccl["is_built"], nccl["version"] is not None)
        if not nccl["is_built"] or found["model"]["gpus"] < 2:
            self.assertEqual(nccl["path"], "mpi")
        for facts in found.values():
            self.assertIn(facts["summary"], shown)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["doctor.json", "text.txt"])

    def test_a_driver_that_is_too_old_is_why_no_gpu_is_used(self):
        libraries = self.folder / "libraries"
        libraries.mkdir()
        subprocess.run(
            ["c++", "-x", "c++", "-shared", "-fPIC", "-", "-o", libraries / "libcuda.so.1"],
            input=b'extern "C" int cuInit(unsigned) { return 0; }',
            check=True,
        )
        # The loader reads the variable when a process starts, so this is no fork.
        found = {"LD_LIBRARY_PATH": f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
        with (
            unittest.mock.patch.dict(os.environ, found),
            unittest.mock.patch.object(program, "PROGRAM_FORKED", program.PROGRAM),
        ):
            report, _ = self.report(0)
        gpus = report["nodes"][0]["findings"]["gpus"]
        self.assertIn("install driver 525", gpus["obstacle"])
        self.assertIn(gpus["obstacle"], gpus["summary"])

    def test_a_run_takes_the_paths_that_were_found(self):
        report, _ = self.report(
            2, "configs/tiny.toml", "--site", "cluster/localhost", "--set", f"csd.path={self.folder}/state"
        )
        (node,) = report["nodes"]
        self.assertEqual((report["ranks"], node["ranks"]), (2, [0, 1]))
        self.assertIn("data.train", node["findings"]["run"]["obstacle"])
        self.assertRegex(self.run_finding()["summary"], "^may begin here on 1 of 1 ranks(; drive: |$)")
        done = program.succeed(2, *self.arguments(train__steps=2, train__stop_at=1), "--traffic")
        self.assertIn("--resume", self.run_finding()["obstacle"])
        head = done.stdout[: done.stdout.index("step 1")]
        found = node["findings"]
        self.assertIn("engine " + found["engine"]["chosen"], head)
        self.assertIn(found["model"]["path"], head)
        self.assertIn(found["mpi"]["library"], head)
        self.assertIn(found["state_io"]["chosen"], head)

    def test_a_storage_rank_is_a_node_that_needs_no_gpu(self):
        report, shown = self.report(
            3, "--set", "csd.storage_ranks=1", "--set", f"csd.path=[{self.folder}, {self.folder}/other]"
        )
        computing, storing = report["nodes"]
        self.assertEqual(
            [(node["ranks"], node["computes"], node["holds"]) for node in report["nodes"]],
            [([0, 1], True, False), ([2], False, True)],
        )
        self.assertEqual(
            storing["findings"].keys() - computing["findings"].keys(), {"engine", "state_io", "state_folder_1", "xrt"}
        )
        self.assertEqual(computing["findings"].keys() - storing["findings"].keys(), {"model", "gpus", "nccl_nvlink"})
        self.assert_states(shown, "rank 2 of 3")
        alone, _ = self.report(0, "--set", "csd.storage_ranks=1")  # on a machine of the user's
        self.assertEqual(
            alone["nodes"][0]["findings"].keys(),
            computing["findings"].keys() | storing["findings"].keys() - {"state_folder_1"},
        )

    def test_a_site_is_written_of_what_is_there(self):
        site, drives = self.folder / "site", [self.folder / "one", self.folder / "two"]
        words = ["doctor", "--write-site", site, "--set", f"csd.path={json.dumps([*map(str, drives)])}"]
        done = program.succeed(1, *words)
        self.assertIn(f"site: {site}/site.toml", done.stdout)
        self.assertEqual([path.name for path in site.iterdir()], ["site.toml"], "what was measured is removed")
        # A run, a plan and the doctor take the site as it is, with what it says is missing.
        again = ["--site", site]
        program.succeed(0, "doctor", *again)
        out = self.folder / "plan.json"
        sizes = ("--set", "model.vocabulary=256", "--set", "csd.rated_tbw=100")
        program.succeed(0, "plan", "configs/tiny.toml", *again, *sizes, "--json", out)
        (plan,) = json.loads(out.read_text())
        self.assertEqual((plan["nodes"], plan["devices"]), (1, 2))
        self.assert_refusal(program.run(1, *words), f"{site}/site.toml is there already")
        self.assert_refusal(program.run(0, "doctor", "--write-site", "/proc/x"), "/proc/site.toml cannot be written")

    def test_a_site_that_finds_no_room_leaves_no_folder(self):
        words = ["doctor", "--write-site", self.folder / "new/site", "--set", f"csd.path={self.folder / 'drive'}"]
        limited = ["sh", "-c", 'trap "" XFSZ; ulimit -f 1; exec "$@"', "sh", program.PROGRAM]  # blocks of 512 bytes
        self.assert_refusal(program.call(*limited, *words), "new/site/site.toml cannot be written")
        self.assertFalse((self.folder / "new").exists())
        limited[2] = limited[2].replace("-f 1", "-f 100")
        said = program.call(*limited, *words).stdout
        self.assertIn("let this process write larger files", said)
        self.assertNotIn("--resume", said, "there is no run to go on with")

    def test_a_site_of_hosts_says_all_that_is_missing_at_once(self):
        site, rsh = self.folder / "site", self.folder / "rsh"
        rsh.write_text(
            "#!/bin/sh\n"
            "case $1 in down*) echo Connection refused >&2; exit 255;; liar) echo 'findings {}'; exit 0;; esac\n"
            'echo "Welcome to $1"; exec sh -c "$2"\n'
        )
        rsh.chmod(0o755)
        keys = ("--set", f"hosts.remote={rsh}", "--set", f"csd.path={json.dumps([str(self.folder / 'one')])}")
        done = program.run(0, "doctor", "--write-site", site, "one", "down1", "down2", "liar", *keys)
        self.assert_refusal(done, "3 of 4 hosts", "host down1", "Connection refused", "host down2", "host liar")
        self.assertIn("missing: csd.rated_tbw", done.stdout)
        self.assertFalse(site.exists(), "a refused command leaves nothing")
        done = program.succeed(0, "doctor", "--write-site", site, "one", *keys)
        self.assert_states((site / "site.toml").read_text(), 'names = ["one"]', f'remote = "{rsh}"', "device_read_gb_s")
        self.assert_refusal(program.run(0, "doctor", "--write-site", site, "a,b", *keys), "no name of a host", "blanks")

    def test_threads_are_named_as_the_choice_of_the_config(self):
        report, _ = self.report(0, "--set", "csd.io=threads", "--set", f"csd.path={self.folder}")
        self.assertEqual(report["nodes"][0]["findings"]["state_io"]["chosen"], "threads")


class Progress(program.Scenario):
    def on_a_terminal(self, columns, command, **variables):
        """Returns what the command writes to a terminal of that width."""
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = dict(program.environment(), TERM="xterm", **variables)
        running = subprocess.Popen(command, cwd=program.ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=its)
        os.close(its)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        self.assertEqual(running.wait(timeout=program.HANG_S), 0, shown)
        return shown.decode()

    def test_progress_rewrites_a_line_of_a_terminal(self):
        keys = {"train__steps": 30, "train__global_batch": 2, "train__evaluate_batches": 2, "csd__durability": "none"}
        command = [program.PROGRAM_FORKED, *map(str, self.arguments(**keys))]
        shown = self.on_a_terminal(40, [program.ROOT / "launch/ranks", "2", *command], NO_COLOR="")
        lines = shown[shown.index("\r\x1b[K") : shown.index("held-out")].split("\r\x1b[K")[1:]
        progress = [line.splitlines()[0] for line in lines if "/30" in line]
        self.assertGreater(
            len(progress), 1, shown
        )  # as many as the run takes tenths of a second, and the first and last step
        self.assertTrue(progress[0].startswith("\x1b[1mstep 1/30\x1b[0m  loss "), progress)
        self.assertTrue(progress[-1].startswith("\x1b[1mstep 30/30\x1b[0m  loss "), progress)
        plain = [line.replace("\x1b[1m", "").replace("\x1b[0m", "") for line in progress]
        self.assertEqual({len(line) for line in plain}, {39})  # cut to the width

        shown = self.on_a_terminal(200, command, NO_COLOR="1")
        self.assertNotIn("\x1b[1m", shown)
        last = shown[shown.index("step 30/30") :].splitlines()[0]
        self.assertRegex(last, r"step 30/30  loss [\d.]+  \d+ tokens/s  sol [\d.]+ % \((compute|storage)\)  0:00 left$")

    def test_a_log_gets_few_lines_and_tables_only_if_asked(self):
        begun = time.monotonic()
        plain = program.run_in_turn(
            2, *self.arguments(train__steps=30, train__global_batch=2), "--json", self.folder / "run.json"
        )
        took_s = time.monotonic() - begun
        self.assertEqual(plain.returncode, 0, plain.stderr)
        self.assertNotIn("\r", plain.stdout)
        steps = [
            line.split()[1] for line in plain.stdout.splitlines() if line.startswith("step ") and "tokens/s" in line
        ]
        self.assertEqual([steps[0], steps[-1]], ["1/30", "30/30"])
        self.assertLessEqual(len(steps), 2 + took_s / 10)  # ten seconds lie between two lines, except before the last
        self.assertNotIn("Bytes over the host link", plain.stdout)
        light = json.loads((self.folder / "run.json").read_text())["speed_of_light"]
        self.assertEqual(light["bound"], "storage" if light["storage_s"] > light["compute_s"] else "compute")
        self.assertGreater(min(light["share"], light["operations_per_s"], light["state_bytes_per_s"]), 0)
        told = program.run_in_turn(2, *self.arguments(train__steps=2, state="told"), "--traffic")
        self.assertEqual(told.returncode, 0, told.stderr)
        for table in (
            "Bytes over the host link",
            "Bytes per parameter and step on the other links",
            "state of rank 0: ",
        ):
            self.assertIn(table, told.stdout)


if __name__ == "__main__":
    program.main()
