"""Every site of cluster/ has only known keys, and the launchers build the command lines that it asks for."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import unittest

import program

SITES = sorted(path.parent for path in program.ROOT.glob("cluster/*/site.toml"))
IN_GPUS = program.ROOT / "cluster/experiments/llama.choices/state-in-gpus.toml"
# At least as many sequences as any site has ranks.
SETTINGS = ("--set", "train.global_batch=64")


class Sites(program.Scenario):
    def words(self, launcher, site, *options):
        """The command line of a dry run, without the words that say where it runs."""
        return self.dry_run(
            launcher, "configs/tiny.toml", site, *SETTINGS, "--set", f"data.train={self.text}", *options
        )

    def dry_run(self, launcher, work, site, *options):
        done = program.call(
            program.ROOT / "launch" / launcher,
            work,
            site,
            "--dry-run",
            *options,
            NEARSTEP_PROGRAM=str(program.PROGRAM_FORKED),
            NEARSTEP_PYTHON=sys.executable,
        )
        self.assertEqual(done.returncode, 0, f"{launcher} {site}\n{done.stdout}\n{done.stderr}")
        return shlex.split(re.sub(r"^on \S+ by \S+: ", "", done.stdout))

    def test_a_script_starts_as_a_config_does(self):
        script = [
            sys.executable,
            "examples/train_loop.py",
            "folder",
            "--lr=1",
            "--check",
            "-n",
            "4",
            "--set",
            "a=b",
            "--dry-run",
        ]
        words = self.dry_run("mpirun", script[1], "cluster/localhost", "-n", "2", "--", *script[2:])
        self.assertEqual(words[words.index("-np") + 1 :], ["2", *script])
        words = self.dry_run("slurm", script[1], "cluster/slurm-cluster", "--time=10", "--", *script[2:])
        self.assertEqual(words[words.index("--", words.index("launch/slurm_job")) + 1 :], script)
        self.assertIn("--job-name=nearstep-train_loop", words)
        self.assertIn("--time=10", words)

    @unittest.skipIf(
        importlib.util.find_spec("nearstep") is None, "this Python has no nearstep: launch/setup installs it"
    )
    def test_a_word_of_an_option_may_have_blanks(self):
        site = self.folder / "site.toml"
        options = {"mpirun": ["-x", "WORDS=two words"], "slurm": ["--comment=two 'words'"]}
        keys = {"mpirun": "mpirun_options", "slurm": "sbatch_options"}
        lines = [f"{keys[launcher]} = {json.dumps(words)}\n" for launcher, words in options.items()]
        site.write_text('[hosts]\nnames = ["one", "two"]\nranks = 1\n' + "".join(lines))
        for launcher, words in options.items():
            self.assertIn(words[-1], self.words(launcher, site))

    def test_the_check_of_a_script_needs_no_config(self):
        script = self.folder / "train.py"
        script.write_text("import nearstep\n")
        done = program.succeed(0, "preflight", "--script", script, "--python", sys.executable, "--ranks", 1000)
        self.assertRegex(done.stdout, r"(?m)^package_sha256 \w{64}$")
        for words in ((), ("configs/tiny.toml", "--script", script)):
            self.assert_refusal(program.run(0, "preflight", *words), "config", "--script")

    def test_another_mpi_and_a_limit_that_is_none_are_refused(self):
        (self.folder / "bin").mkdir()
        other = self.folder / "bin/mpirun"
        other.write_text("#!/bin/sh\necho 'HYDRA build details'\n")
        other.chmod(0o755)
        for variables, words in (
            ({"PATH": f"{other.parent}:{os.environ['PATH']}"}, f"{other} is not Open MPI's"),
            ({"NEARSTEP_TIMEOUT": "soon"}, "NEARSTEP_TIMEOUT is 'soon'"),
            ({"OMP_NUM_THREADS": "many"}, "OMP_NUM_THREADS is 'many'"),
            ({"OMP_NUM_THREADS": "08"}, "OMP_NUM_THREADS is '08'"),
        ):
            done = program.call(
                program.ROOT / "launch/mpirun",
                "configs/tiny.toml",
                "cluster/localhost",
                "--set",
                f"data.train={self.text}",
                "--set",
                f"csd.path={self.folder / 'state'}",
                NEARSTEP_PROGRAM=str(program.PROGRAM_FORKED),
                **variables,
            )
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)

    def test_a_job_that_is_none_is_refused(self):
        for variables in (
            {"SLURM_JOB_ID": ""},
            {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "once"},
            {"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "a[b]"},
        ):
            for words in ((), ("--", program.PROGRAM_FORKED, "train", "configs/tiny.toml")):
                done = program.call(program.ROOT / "launch/slurm_job", *words, **variables)
                self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
                self.assertIn("launch/slurm", done.stderr)

    def test_what_a_host_prints_is_no_command(self):
        ran = self.folder / "ran"
        word = f"BASH_VERSINFO[$(touch {ran})0]"
        site = self.folder / "site"
        site.mkdir()
        for key in ("cores", "time_us", "machine", "asked_us", "answered_us"):
            with self.subTest(key=key):
                remote = program.make_script(
                    self.folder / "remote",
                    f'shift; said=$(bash -c "$*"); echo "$said" | sed "s#^{key} .*##"\necho \'{key} {word}\'',
                )
                (site / "site.toml").write_text(f'[hosts]\nnames = ["localhost"]\nranks = 1\nremote = "{remote}"\n')
                done = program.call(
                    program.ROOT / "launch/mpirun",
                    "configs/tiny.toml",
                    site,
                    "--check",
                    "--set",
                    f"data.train={self.text}",
                    "--set",
                    f"csd.path={self.folder / 'state'}",
                    NEARSTEP_PROGRAM=str(program.PROGRAM_FORKED),
                )
                self.assertFalse(ran.exists(), done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                if key in ("cores", "time_us"):
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assert_states(done.stderr, "host localhost", key)

    def test_more_hosts_than_a_command_line_has_room_for_are_one_sentence(self):
        site = self.folder / "site"
        site.mkdir()
        names = json.dumps([f"node{number:06}" for number in range(10000)])
        (site / "site.toml").write_text(f'[hosts]\nnames = {names}\nremote = "true"\n')
        words = (program.ROOT / "launch/mpirun", "examples/train_loop.py", site, "--dry-run")
        done = program.call(*words, NEARSTEP_PROGRAM=str(program.PROGRAM_FORKED))
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
        self.assert_states(done.stderr, "10000 hosts", "-n", "launch/slurm")

    def test_names_are_those_of_the_users_folder_also_for_a_launcher_called_by_a_link(self):
        shutil.copy(program.ROOT / "configs/tiny.toml", self.folder / "my.toml")
        (self.folder / "train").symlink_to(program.ROOT / "launch/mpirun")
        python = {"PYTHONPATH": str(program.ROOT / "python"), "NEARSTEP_PROGRAM": str(program.PROGRAM_FORKED)}
        environment = {**program.environment(), **python}
        site, options = (
            program.ROOT / "cluster/localhost",
            ["--dry-run", f"--set=data.train={self.text.name}", *SETTINGS],
        )

        def words_of(*words):
            done = subprocess.run(
                [*words, *options], cwd=self.folder, env=environment, text=True, capture_output=True, check=True
            )
            return shlex.split(done.stdout)

        words = words_of("./train", "my.toml", site)
        self.assertIn(str(program.ROOT / "launch/notice"), words)
        self.assertIn("my.toml", words)
        run = [sys.executable, "-c", "import nearstep_run; nearstep_run.main()", "--site"]
        self.assertEqual(words_of(*run, site, "my.toml"), words)
        for command in ([self.folder / "train", "absent.toml", site], [*run, site, "absent.toml"], [*run, site]):
            done = subprocess.run([*command, "--dry-run"], cwd="/", text=True, capture_output=True, env=environment)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assert_states(done.stderr, "absent.toml" if "absent.toml" in command else "--site")

    def test_a_job_whose_time_is_over_before_its_notice_is_refused(self):
        for words in (
            ["--time=2"],
            ["-t", "1:30"],
            ["-t2"],
            ["--time=0-00:02"],
            ["--time=10", "--time=00:01:59"],
            ["--time=5", "--signal=B:USR1@400"],
        ):
            done = program.call(
                program.ROOT / "launch/slurm",
                "configs/tiny.toml",
                "cluster/slurm-cluster",
                "--dry-run",
                *SETTINGS,
                "--set",
                f"data.train={self.text}",
                *words,
                NEARSTEP_PROGRAM=str(program.PROGRAM_FORKED),
            )
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assert_states(done.stderr, "--time", "notice")
        for words in (
            ["--time=0"],
            ["--time=1-0"],
            ["--time=UNLIMITED"],
            ["--time=1", "--time=1:0:0"],
            ["--time=1", "--signal=USR1@30"],
        ):
            self.words("slurm", "cluster/slurm-cluster", *words)

    def test_root_works_in_no_folder_of_others(self):
        folder = self.folder / "hosts"
        folder.mkdir()
        link = self.folder / "link"
        link.symlink_to(folder)
        for name, mode in (("hosts", 0o777), ("link", 0o700), ("link/", 0o700)):
            folder.chmod(mode)
            for command in (("vhosts", "up", "1"), ("vhosts", "down"), ("slurm", "down")):
                done = program.call(
                    program.ROOT / "cluster/virtual-hosts" / command[0],
                    *command[1:],
                    NEARSTEP_VHOSTS=f"{self.folder}/{name}",
                )
                self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
                self.assert_states(done.stderr, "NEARSTEP_VHOSTS")
        self.assertEqual(list(folder.iterdir()), [])

    def test_there_are_sites(self):
        self.assertGreaterEqual(
            {site.name for site in SITES}, {"localhost", "virtual-hosts", "gpu-node", "slurm-cluster", "csd-pod"}
        )

    def test_each_starts_with_mpirun_on_its_hosts(self):
        for site in SITES:
            with self.subTest(site=site.name):
                hosts = tomllib.loads((site / "site.toml").read_text()).get("hosts", {})
                words = self.words("mpirun", site)
                slots = [(name, hosts.get("ranks", 0)) for name in hosts.get("names", [])]
                slots += [(name, 1) for name in hosts.get("storage", [])]
                ranks = sum(count for _, count in slots) or max(1, hosts.get("ranks", 0))
                self.assertEqual(words[words.index("-np") + 1], str(ranks))
                if slots:
                    self.assertEqual(
                        words[words.index("--host") + 1], ",".join(f"{name}:{count}" for name, count in slots)
                    )
                if "interface" in hosts:
                    self.assertIn(f"OMPI_MCA_btl_tcp_if_include={hosts['interface']}", words)
                if "cores_per_rank" in hosts:
                    self.assertIn(f"slot:PE={hosts['cores_per_rank']}", words)
                start = words.index(str(program.PROGRAM_FORKED))
                self.assertEqual(words[start + 1 : start + 5], ["train", "configs/tiny.toml", "--site", str(site)])

    def test_storage_hosts_take_the_last_ranks(self):
        site = self.folder / "stored"
        site.mkdir()
        (site / "site.toml").write_text(
            '[hosts]\nnames = ["a", "b"]\nstorage = ["s1", "s2"]\nranks = 2\nremote = "true"\n'
        )

        def ranks_in(words):
            ends = [i for i, word in enumerate(words) if word == ":"] + [len(words)]
            parts = [words[begin:end] for begin, end in zip([0, *ends], ends)]
            return [(part[part.index("--host") + 1], part[part.index("-np") + 1]) for part in parts]

        self.assertEqual(ranks_in(self.words("mpirun", site)), [("a:2,b:2,s1:1,s2:1", "6")])
        self.assertEqual(
            ranks_in(self.words("mpirun", site, "--set", "csd.storage_ranks=1", "-n", "4")), [("a:2,b:1,s1:1", "4")]
        )
        words = self.dry_run("mpirun", "examples/train_loop.py", site, "-n", "5")
        self.assertEqual(ranks_in(words), [("a:2,b:1", "3"), ("s1:1,s2:1", "2")])
        self.assertEqual(words[-5:], ["2", sys.executable, "-m", "nearstep", "serve"])

    def test_each_is_submitted_to_slurm_with_its_nodes_and_devices(self):
        for site in SITES:
            with self.subTest(site=site.name):
                toml = tomllib.loads((site / "site.toml").read_text())
                hosts, per_rank = toml.get("hosts", {}), toml.get("csd", {}).get("per_rank", 1)
                words = self.words("slurm", site, "--time=10")
                ranks = max(1, hosts.get("ranks", 0))
                nodes = max(1, len(hosts.get("names", [])))
                for word in (
                    f"--nodes={nodes}",
                    f"--ntasks={nodes * ranks}",
                    f"--ntasks-per-node={ranks}",
                    f"--gres=csd:{per_rank if 'storage' in hosts else ranks * per_rank}",
                    "--time=10",
                    *hosts.get("sbatch_options", []),
                ):
                    self.assertIn(word, words)
                self.assertLess(words.index("sbatch"), words.index("launch/slurm_job"))

    def test_storage_hosts_are_a_second_part_of_the_job(self):
        site = self.folder / "site"
        site.mkdir()
        (site / "site.toml").write_text(
            '[hosts]\nnames = ["a", "b"]\nstorage = ["s1", "s2"]\nranks = 2\ncores_per_rank = 3\nremote = "true"\n'
            'sbatch_options = ["--gpus-per-node=2"]\nstorage_sbatch_options = ["--partition=store"]\n[csd]\nper_rank '
            "= 4\n"
        )
        words = self.words("slurm", site, "--time=10", ":", "--time=20")
        first, second = (" ".join(words[words.index("sbatch") + 1 : words.index("launch/slurm_job")]) + " ").split(
            " : "
        )
        self.assertRegex(
            first,
            "^--nodes=2 --ntasks=4 --ntasks-per-node=2 --job-name=.* --cpus-per-task=3 --gpus-per-node=2 --time=10$",
        )
        self.assertRegex(
            second, "^--nodes=2 --ntasks=2 --ntasks-per-node=1 --gres=csd:4 .* --requeue --partition=store --time=20 $"
        )

    def test_those_that_say_what_a_plan_needs_have_plans(self):
        planned = 0
        for site in SITES:
            keys = tomllib.loads((site / "site.toml").read_text())
            if "gpu_tflops" not in keys.get("plan", {}):
                continue
            planned += 1
            has_devices = "device_read_gb_s" in keys["link"]  # else state is planned in GPU memory alone
            done = program.succeed(
                0,
                "plan",
                "configs/gpt-7b.toml",
                "--site",
                site,
                "--nodes",
                "1",
                *([] if has_devices else ["--choice", IN_GPUS]),
            )
            self.assertNotIn("no plan", done.stdout)
            self.assert_states(done.stdout, "tokens/s per $" if has_devices else "GPU memory")
        self.assertGreaterEqual(planned, 3)

    def test_real_links_are_not_delayed(self):
        rates = {"link__host_gb_s": 1e-5, "link__device_write_gb_s": 1e-5, "link__device_read_gb_s": 1e-5}
        done = program.succeed(1, *self.arguments(train__steps=2, link__scale=0, **rates))
        self.assertNotIn("shaped links", done.stdout)


if __name__ == "__main__":
    program.main()
