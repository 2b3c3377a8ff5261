"""Open MPI's transport is its own choice, or the user's: each gives the same masters, and a run says which
one it is.
"""

import json
import pathlib
import re
import shlex
import subprocess
import time

import program

UCX = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any"}
CHOICES = {
    "vader": ({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "vader,self"}, "messages by ob1 over vader;"),
    "tcp": ({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}, "messages by ob1 over tcp;"),
    "ucx, shared memory": ({**UCX, "UCX_TLS": "posix,self"}, "messages by ucx;"),
    "ucx, tcp": ({**UCX, "UCX_TLS": "tcp,self"}, "messages by ucx;"),
}
# 127.0.0.1 and ::1 in /proc/net.
LOOPBACK = ("0100007F:", "00000000000000000000000001000000:")


def free_environment():
    """A test's environment, in which nothing is said of transports."""
    return {key: value for key, value in program.environment().items() if key not in ("OMPI_MCA_pml", "OMPI_MCA_btl")}


def has_ucx():
    return "MCA pml: ucx" in subprocess.run(["ompi_info"], text=True, capture_output=True, check=False).stdout


def descendants(pid):
    children = [
        int(one) for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()
    ]
    return children + [one for child in children for one in descendants(child)]


def listening(pid):
    """Whether the process has a TCP socket that takes connections from other machines."""
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in pathlib.Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
    ]
    sockets = {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and not row[1].startswith(LOOPBACK)}
    return bool(sockets & {str(path.readlink()) for path in pathlib.Path(f"/proc/{pid}/fd").iterdir()})


def name_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


class Transport(program.Scenario):
    def launched(self, ranks, *words, **variables):
        return subprocess.run(
            [program.ROOT / "launch/ranks", str(ranks), program.PROGRAM_FORKED, *map(str, words)],
            cwd=program.ROOT,
            text=True,
            env={**free_environment(), **variables},
            capture_output=True,
            timeout=program.HANG_S,
            stdin=subprocess.DEVNULL,
        )

    def test_each_transport_gives_the_same_masters_and_is_named(self):
        masters = {}
        for name, (variables, words) in CHOICES.items():
            with self.subTest(transport=name):
                if "ucx" in name and not has_ucx():
                    self.skipTest("this Open MPI has no UCX")
                summary = self.folder / "summary.json"
                done = self.launched(
                    2, *self.arguments(train__steps=2, flags=["--fresh", "--traffic", "--json", summary]), **variables
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(words, done.stdout)
                masters[name] = json.loads(summary.read_text())["masters_xxh3"]
        self.assertEqual(len(set(masters.values())), 1, masters)

    def test_of_a_run_on_one_machine_only_mpirun_listens(self):
        metrics = self.folder / "metrics.jsonl"
        words = [
            program.ROOT / "launch/ranks",
            "2",
            program.PROGRAM,
            *map(str, self.arguments(train__steps=100000, flags=["--fresh", "--metrics", metrics])),
        ]
        for variables, listens in (
            ({}, {"mpirun"}),
            ({"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}, {"mpirun", "nearstep"}),
        ):
            with self.subTest(**variables):
                running = subprocess.Popen(
                    words,
                    cwd=program.ROOT,
                    env={**free_environment(), **variables},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                try:
                    while running.poll() is None and not (metrics.exists() and '"loss"' in metrics.read_text()):
                        time.sleep(0.05)
                    processes = descendants(running.pid)
                    self.assertEqual([name_of(pid) for pid in processes].count("nearstep"), 2)
                    self.assertEqual({name_of(pid) for pid in processes if listening(pid)}, listens)
                finally:
                    running.terminate()
                    running.communicate(timeout=program.HANG_S)
                    metrics.unlink()

    def test_the_bench_has_the_rate_beside_the_links_and_doctor_names_the_transport(self):
        out = self.folder / "network.json"
        options = ("--rounds", 2, "--most-bytes", 1 << 16, "--ranks-per-node", 1, "--link-gb-s", 0.001, "--json", out)
        done = self.launched(2, "bench", "network", *options, OMPI_MCA_pml="ob1", OMPI_MCA_btl="tcp,self")
        self.assertEqual(done.returncode, 0, done.stderr)
        (fit,) = (row for row in map(json.loads, out.read_text().splitlines()) if "fit" in row["row"])
        self.assertEqual((fit["transport"], fit["link_gb_s"]), ("ob1 over tcp", 0.001))
        share = int(re.search(r"; (\d+) % of the link", done.stdout)[1])
        self.assertAlmostEqual(share, 100 * fit["gb_s"] / 0.001, delta=1)
        path = self.folder / "doctor.json"
        self.launched(2, "doctor", "--json", path, OMPI_MCA_pml="ob1", OMPI_MCA_btl="tcp,self")
        found = json.loads(path.read_text())["nodes"][0]["findings"]["mpi"]
        self.assertEqual((found["transport"], found["networks"]), ("ob1", ["tcp"]))

    def test_a_site_that_promises_twice_what_is_measured_is_warned_of(self):
        for rate, is_warned in ((1e6, True), (1e-6, False)):
            keys = {"train__steps": 1, "exchange__ranks_per_node": 1, "link__scale": 0, "link__network_gb_s": rate}
            done = self.launched(2, *self.arguments(flags=["--fresh"], **keys))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("warning: the site says that a node sends" in done.stdout, is_warned, done.stdout)

    def started(self, interface='""', **variables):
        """Returns the variables and arguments that launch/mpirun gives mpirun."""
        site = self.folder / "site"
        site.mkdir(exist_ok=True)
        (site / "site.toml").write_text(
            f'[site]\nname = "two"\n[hosts]\nnames = ["a", "b"]\ninterface = {interface}\n'
            'mpirun_options = ["--mca", "pml", "ucx"]\n[csd]\npath = "/x"\n'
        )
        words = [
            program.ROOT / "launch/mpirun",
            program.TINY,
            site,
            "-n",
            "2",
            "--dry-run",
            "--set",
            f"data.train={self.text}",
        ]
        done = subprocess.run(
            words,
            cwd=program.ROOT,
            text=True,
            capture_output=True,
            timeout=program.HANG_S,
            check=True,
            env={**free_environment(), "NEARSTEP_PROGRAM": str(program.PROGRAM_FORKED), **variables},
        )
        before, after = done.stdout.split(" mpirun ")
        return dict(word.split("=", 1) for word in shlex.split(before) if "=" in word), shlex.split(after)

    def test_the_launcher_leaves_the_choice_to_open_mpi_and_to_the_site(self):
        variables, words = self.started()
        self.assertEqual([name for name in variables if name in ("OMPI_MCA_pml", "OMPI_MCA_btl")], [])
        self.assertEqual(words.count("pml"), 1)  # the site's own
        self.assertEqual(variables["OMPI_MCA_btl_tcp_eager_limit"], "1048640")
        self.assertNotIn("OMPI_MCA_btl_tcp_if_include", variables)

    def test_the_interface_reaches_tcp_and_nccl(self):
        variables, words = self.started(interface='"ib0"')
        self.assertEqual(variables["OMPI_MCA_btl_tcp_if_include"], "ib0")
        self.assertEqual(variables["OMPI_MCA_oob_tcp_if_include"], "ib0")
        self.assertEqual(variables["NCCL_SOCKET_IFNAME"], "=ib0")
        self.assertEqual(words[words.index("NCCL_SOCKET_IFNAME") - 1], "-x")

    def test_the_environment_is_stronger_than_a_default(self):
        variables, words = self.started(
            interface='"ib0"',
            OMPI_MCA_btl_tcp_eager_limit="70000",
            OMPI_MCA_btl_tcp_if_exclude="lo",
            NCCL_SOCKET_IFNAME="eth",
            UCX_TLS="tcp",
        )
        self.assertEqual(variables["OMPI_MCA_btl_tcp_eager_limit"], "70000")
        self.assertNotIn("OMPI_MCA_btl_tcp_if_include", variables)
        self.assertEqual(variables["NCCL_SOCKET_IFNAME"], "eth")
        self.assertEqual(words[words.index("UCX_TLS") - 1], "-x")

    def test_a_file_of_open_mpis_is_stronger_than_a_default(self):
        (self.folder / ".openmpi").mkdir()
        (self.folder / ".openmpi/mca-params.conf").write_text("btl_tcp_eager_limit = 70000\n")
        variables, _ = self.started(HOME=str(self.folder))
        self.assertNotIn("OMPI_MCA_btl_tcp_eager_limit", variables)
        self.assertEqual(variables["OMPI_MCA_btl_tcp_max_send_size"], "1048640")


if __name__ == "__main__":
    program.main()
