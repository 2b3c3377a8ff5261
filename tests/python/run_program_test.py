"""nearstep-run, from the sources: its options, what it starts, and what it says at the end. It needs neither PyTorch
nor nearstep.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import launcher

ROOT = launcher.HERE.parents[1]
sys.path.insert(0, str(ROOT / "python"))
from nearstep_run import _boxes  # noqa: E402

EDGE = "-" * 74 + "\n"
RUN = f"import sys; sys.path.insert(0, {str(ROOT / 'python')!r}); import nearstep_run; sys.exit(nearstep_run.main())"


class Boxes(unittest.TestCase):
    OF_ENDS = (
        ("Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n", None),
        (
            "mpirun detected that one or more processes exited with non-zero status\n\n  Process name: "
            "[[5747,1],1]\n  Exit code:    3\n",
            1,
        ),
        ("prterun detected that one or more processes exited\n\n   Process name: [prterun-vm-31646@1,12]\n", 12),
        ("prterun noticed that process rank 3 with PID 31660 on node vm exited on\nsignal 9 (Killed).\n", 3),
        ("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n", 1),
    )

    def test_those_of_ends_are_left_out_wherever_the_text_is_cut(self):
        for box, rank in self.OF_ENDS:
            said = f"loss 1.5\n{EDGE}{box}{EDGE}{EDGE}{box}{EDGE}the last line\n".encode()
            for cut in range(len(said)):
                boxes = _boxes.Boxes()
                shown = boxes.add(said[:cut]) + boxes.add(said[cut:]) + boxes.rest()
                self.assertEqual(shown, b"loss 1.5\nthe last line\n", (box, cut))
                self.assertEqual(boxes.rank, rank)

    def test_all_else_is_shown_at_once(self):
        boxes = _boxes.Boxes()
        for words in (
            "30 %\r40 %",
            "\n--- a table ---\n",
            "- - -",
            "\n",
            "-" * 80 + "\n",
            f"{EDGE}There are not enough slots.\n{EDGE}",
        ):
            self.assertEqual(boxes.add(words.encode()), words.encode())

    def test_an_edge_without_its_box_is_shown_at_the_end(self):
        boxes = _boxes.Boxes()
        self.assertEqual(boxes.add(f"{EDGE}half a".encode()) + boxes.rest(), f"{EDGE}half a".encode())


class Program(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.folder = pathlib.Path(kept.name)
        self.script = self.folder / "train.py"
        self.script.write_text(
            "import os, sys\nwords = [os.environ['OMPI_COMM_WORLD_RANK'], os.environ['OMPI_COMM_WORLD_SIZE'], "
            "*sys.argv[1:]]\nos.write(1, ' '.join(words).encode() + b'\\n')\n"
        )

    def start(self, *words, code=0, **variables):
        kept = {
            name: value
            for name, value in {**launcher.environment(), **variables}.items()
            if not name.startswith("OMPI_COMM_")
        }
        done = subprocess.run(
            [sys.executable, "-c", RUN, *map(str, words)],
            text=True,
            capture_output=True,
            env=kept,
            cwd=self.folder,
            timeout=launcher.WORKERS_LIMIT_S,
        )
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertNotIn("-" * 74, done.stderr)
        return sorted(done.stdout.splitlines()) if code == 0 else done.stderr.splitlines()

    def test_options_are_those_of_torchrun(self):
        ranks = ["0 2 --lr 1", "1 2 --lr 1"]
        self.assertEqual(self.start("--nproc-per-node", 2, self.script, "--lr", 1), ranks)
        self.assertEqual(
            self.start("--standalone", "--nnodes=1", "--nproc_per_node=2", "-m", "train", "--lr", 1), ranks
        )
        self.assertEqual(
            self.start("--nproc-per-node", 2, "--no-python", sys.executable, self.script, "--lr", 1), ranks
        )
        self.assertEqual(self.start(self.script, "--nproc-per-node", "7"), ["0 1 --nproc-per-node 7"])

    def test_more_ranks_than_cores(self):
        ranks = len(os.sched_getaffinity(0)) + 3
        self.assertEqual(len(self.start("--nproc-per-node", ranks, self.script)), ranks)

    def test_a_file_names_the_hosts(self):
        hosts = self.folder / "hosts"
        hosts.write_text("# this machine\nlocalhost slots=1\n")
        self.assertEqual(self.start("--hostfile", hosts, "--nproc-per-node", 2, self.script), ["0 2", "1 2"])
        hosts.rename(self.folder / "the hosts")
        self.assertEqual(
            self.start("--hostfile", self.folder / "the hosts", "--nproc-per-node", 2, self.script), ["0 2", "1 2"]
        )
        (self.folder / "the hosts").rename(hosts)
        (said,) = self.start("--hostfile", hosts, "--nnodes", 2, self.script, code=2)
        self.assertRegex(said, f"--nnodes .*2.* {hosts} .*1")

    def test_mistakes_are_one_sentence(self):
        for words, expected in (
            ((self.folder / "none.py",), "/none.py"),
            (("-m", "no_such_module"), "no_such_module"),
            (("-m", "json.no_such_part"), "json.no_such_part"),
            (("--nproc-per-node", "two", self.script), "--nproc-per-node .*'two'"),
            (("--nnodes", 2, self.script), "--nnodes .*--hostfile"),
            (("--no-python", "/nowhere"), "/nowhere"),
            (("--rdzv-endpoint", "host:1", self.script), "--rdzv-endpoint"),
            (("--wrong", 2, self.script), "--help"),
            ((), "--help"),
            (("--nproc-per-nod", 2, self.script), "--nproc-per-nod: .*--nproc-per-node[?]"),
        ):
            (said,) = self.start(*words, code=2)
            self.assertRegex(said, f"^nearstep-run: .*{expected}")

    def test_mistakes_around_it_are_one_sentence(self):
        names = ("binary", "empty", "pipe", "option", "slots", "mpirun", "windows", "word", "again", "many")
        binary, empty, pipe, option, slots, other, windows, word, again, many = (self.folder / name for name in names)
        binary.write_bytes(b"\xff\xfe\0host\n")
        empty.write_text("# none\n")
        os.mkfifo(pipe)
        option.write_text("localhost\n-oProxyCommand=touch\n")
        slots.write_text("localhost slots=0\n")
        windows.write_bytes(b"localhost\r\n")
        word.write_text("localhost slot = 2\n")
        again.write_text("localhost slots=1\nother\nlocalhost slots=1\n")
        many.write_text("".join(f"host{number}\n" for number in range(70000)))
        other.write_text("#!/bin/sh\necho 'HYDRA build details'\n")
        other.chmod(0o755)
        for words, variables, expected in (
            ((), {"SLURM_NNODES": "two"}, "SLURM_NNODES .*'two'"),
            (("--nproc-per-node", "9" * 5000), {}, "digits"),
            (("--hostfile", binary), {}, "no text"),
            (("--hostfile", empty), {}, "no host"),
            (("--hostfile", pipe), {}, "no regular file"),
            (("--hostfile", option), {}, "line 2 of .* names no host"),
            (("--hostfile", slots), {}, "line 1 of .* slots=0"),
            (("--hostfile", windows), {}, "line 1 of .* Windows"),
            (("--hostfile", word), {}, "line 1 of .* slot=2: .*slots=NUMBER"),
            (("--hostfile", again), {}, "line 3 of .* localhost again"),
            (("--hostfile", many), {}, "70000 hosts.*65536"),
            ((), {"NEARSTEP_TIMEOUT": "soon"}, "NEARSTEP_TIMEOUT .*'soon'"),
            ((), {"SLURM_NNODES": "2", "SLURM_JOBID": "5", "SLURM_NODELIST": ""}, "SLURM_NODELIST.*--standalone"),
            ((), {"OMPI_MCA_orte_tmpdir_base": f"{empty}/of"}, f"{empty}/of.* TMPDIR"),
            ((), {"PATH": f"{self.folder}:/usr/bin:/bin"}, f"{other} .*Open MPI"),
        ):
            (said,) = self.start(*words, self.script, code=2, **variables)
            self.assertRegex(said, expected)
        self.assertEqual(self.start(self.script, SLURM_NNODES=""), ["0 1"])

    def test_a_rank_that_fails_is_one_sentence(self):
        self.script.write_text(
            "import os, sys, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1': exec(sys.argv[1])\ntime.sleep(60)\n"
        )
        for does, code, expected in (("sys.exit(3)", 3, "code 3"), ("os.kill(os.getpid(), 9)", 137, "SIGKILL")):
            (said,) = self.start("--nproc-per-node", 2, self.script, does, code=code)
            self.assertRegex(said, rf"^nearstep-run: .*\b{expected}\b.*\b2 ranks\b.*\.$")

    def test_ranks_do_not_outlive_it(self):
        self.script.write_text(
            "import os, time\nopen(os.environ['OMPI_COMM_WORLD_RANK'] + '.pid', "
            "'w').write(str(os.getpid()))\ntime.sleep(300)\n"
        )
        run = subprocess.Popen(
            [sys.executable, "-c", RUN, "--nproc-per-node", "2", self.script],
            env=launcher.environment(),
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(run.kill)
        files = [self.folder / f"{rank}.pid" for rank in range(2)]
        self.wait_until(lambda: all(file.exists() and file.read_text() for file in files), "the ranks start")
        run.kill()
        run.wait()
        pids = [int(file.read_text()) for file in files]
        self.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "the ranks end")

    def wait_until(self, holds, what):
        end = time.monotonic() + launcher.WORKERS_LIMIT_S
        while not holds():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)


class Becomes(unittest.TestCase):
    """The command nearstep, with a stand-in for the program and for PyTorch's metadata."""

    def setUp(self):
        kept = tempfile.TemporaryDirectory()
        self.addCleanup(kept.cleanup)
        self.site = pathlib.Path(kept.name)
        self.package = self.site / "nearstep_run"
        for name in ("nearstep_run", "nearstep_output"):
            shutil.copytree(ROOT / "python" / name, self.site / name)
        (self.site / "torch").mkdir()
        (self.site / "torch/__init__.py").touch()
        (self.site / "torch-2.15.0.dist-info").mkdir()
        (self.site / "torch-2.15.0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.15.0\n")

    def put(self, path, loads=0):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/sh\n[ "$1" != --version ] || exit {loads}\necho became "$@"\n')
        path.chmod(0o755)

    def becomes(self, *words):
        code = f"import sys; sys.path.insert(0, {str(self.site)!r}); from nearstep_run._program import main; main()"
        done = subprocess.run([sys.executable, "-S", "-c", code, *words], text=True, capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_commands_without_tensors_run_with_a_pytorch_that_the_program_loads(self):
        self.put(self.package / "nearstep")
        (self.package / "torch_version").write_text("2.13\n")
        self.assertEqual(self.becomes("suggest", "1e9"), (0, "became suggest 1e9\n"))
        for loads, word in ((0, "train"), (127, "suggest")):
            self.put(self.package / "nearstep", loads)
            code, said = self.becomes(word)
            self.assertEqual((code, said.count("\n")), (2, 1), said)
            self.assertIn("torch==2.13.*", said)

    def test_a_package_of_a_checkout_starts_the_checkout_s(self):
        checkout = self.site / "checkout"
        (self.package / "checkout").write_text(f"{checkout}\n")
        code, said = self.becomes("train")
        self.assertEqual((code, said.count("\n")), (2, 1), said)
        self.assertIn(f"launch/build release nearstep in {checkout}", said)
        self.put(checkout / "build/release/nearstep")
        self.assertEqual(self.becomes("train"), (0, "became train\n"))


if __name__ == "__main__":
    launcher.main()
