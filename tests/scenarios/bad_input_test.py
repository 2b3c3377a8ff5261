"""Invalid input gives one sentence and exit code 2, without a hang, and overwrites nothing. What a config alone makes
invalid is in tests/config/refusal_test.cpp; here are what a run finds out, and a few of those."""

import fcntl
import glob
import json
import os
import pathlib
import shutil
import subprocess
import unittest

import program

# name: (settings added to a good config, words that the sentence must contain)
SETTINGS = {
    "unknown key": (["train.stepz=3"], ["train.stepz", "train.steps"]),
    "text that is missing": (["data.train=/nowhere/text"], ["/nowhere/text"]),
    "held-out text that is missing": (["data.valid=/nowhere/text"], ["/nowhere/text"]),
    "devices for three ranks on two": (["csd.per_rank=[1,1,1]"], ["csd.per_rank", "2"]),
    "cards that nothing names": (["csd.device=xrt"], ['csd.device = "', "emulated"]),
    "a rank without devices for its copy": (
        ["placement.optimizer=replicated", "csd.per_rank=[1,0]"],
        ["placement.optimizer", "rank 1", "csd.per_rank"],
    ),
    "state below a file": (["csd.path=/dev/null/state"], ["/dev/null/state", "csd.path", "is a file"]),
    "a model larger than any": (["model.layers=10000", "model.width=262144"], ["parameters", "model.width"]),
    "a state larger than the disk": (
        ["model.layers=1000", "model.width=8192", "model.heads=64", "csd.subgroup_tiles=1024"],
        ["free"],
    ),
}

if not glob.glob("/dev/nvidia[0-9]*"):
    SETTINGS["a GPU where there is none"] = (["model.device=cuda"], ["model.device", "cpu"])

# name: (arguments, words)
COMMANDS = {
    "a benchmark of a codec that there is not": (["bench", "csd", "--codec", "zip"], ["zip", "topk"]),
    "a plan for a site without rates": (["plan", "configs/gpt-7b.toml"], ["plan.gpu_tflops", "site file"]),
    "a plan for no node": (["plan", "configs/gpt-7b.toml", "--nodes", "0"], ["--nodes"]),
    "a plan for no device": (["plan", "configs/gpt-7b.toml", "--csds", "0"], ["--csds"]),
    "a plan for a number that is left out": (["plan", "configs/gpt-7b.toml", "--nodes", "1,,2"], ["--nodes", "comma"]),
    "devices that end with a comma": (["compare", "configs/tiny.toml", "--devices=1,"], ["--devices", "comma"]),
    "a plan that nothing has room for": (
        ["plan", "configs/gpt-7b.toml", "--site", "cluster/csd-pod", "--set", "plan.gpu_memory_gb=1"],
        ["no plan", "1 node", "GPU memory"],
    ),
    "a plan with a codec that there is not": (
        ["plan", "configs/gpt-7b.toml", "--site", "cluster/csd-pod", "--codecs", "zip"],
        ["zip", "topk"],
    ),
    "a plan with a codec twice": (
        ["plan", "configs/gpt-7b.toml", "--site", "cluster/csd-pod", "--codecs", "q4,q4"],
        ["q4", "twice"],
    ),
    "a plan of mode su with a codec": (
        ["plan", "configs/gpt-7b.toml", "--site", "cluster/csd-pod", "--set", "mode=su", "--codecs", "q4"],
        ["mode", "--codecs", "dense"],
    ),
    "a plan of mode base": (
        ["plan", "configs/gpt-7b.toml", "--site", "cluster/csd-pod", "--set", "mode=base"],
        ["base", "su+o"],
    ),
    "no command": ([], ["--help"]),
    "a command that there is not": (["trian"], ["command trian", "did you mean train?"]),
    "a benchmark that there is not": (["bench", "cds"], ["did you mean csd?"]),
    "train without a config": (["train"], ["config"]),
    "an option that there is not": (["train", "configs/tiny.toml", "--fast-path"], ["--fast-path", "--help"]),
    "an option that is misspelt": (
        ["train", "configs/tiny.toml", "--metrcs=steps.jsonl"],
        ["option --metrcs:", "did you mean --metrics?"],
    ),
    "a config that is missing": (["train", "configs/nothing.toml"], ["configs/nothing.toml"]),
    "a config that is a folder": (["train", "configs"], ["configs"]),
    "a site that is missing": (["train", "configs/tiny.toml", "--site", "cluster/nowhere"], ["cluster/nowhere"]),
    "exporting shards of no size": (
        ["export", "nothing.h5", "out", "--format", "safetensors", "--shard-gb", "nan"],
        ["--shard-gb"],
    ),
    "exporting what is missing": (["export", "nothing.h5", "out.h5"], ["nothing.h5"]),
    "exporting what is no checkpoint": (["export", "README.md", "out.h5"], ["README.md"]),
    "inspecting what is no HDF5 file": (["inspect", "README.md"], ["README.md"]),
    "a doctor whose findings cannot be written": (
        ["doctor", "--json", "/nowhere/doctor.json"],
        ["/nowhere/doctor.json"],
    ),
    "a doctor for a site that is missing": (["doctor", "--site", "cluster/nowhere"], ["cluster/nowhere"]),
    "a notice that is no number": (["train", "configs/tiny.toml", "--notice", "soon"], ["--notice", "0 to 1000000000"]),
    "no rank": (["hosts", "configs/tiny.toml", "--ranks", "0"], ["--ranks", "1 to 1000000000"]),
    "a config without an end": (["train", "/dev/zero"], ["/dev/zero", "longer"]),
    "a calibration without an end": (
        ["plan", "configs/gpt-7b.toml", "--site", "cluster/csd-pod", "--calibrate", "/dev/zero"],
        ["/dev/zero", "longer"],
    ),
    "a negative sample": (["train", "configs/tiny.toml", "--sample", "-5"], ["--sample", "0 to 1000000000"]),
}


class BadInput(program.Scenario):
    def assert_refused(self, done, words):
        sentences = [line for line in done.stderr.splitlines() if line.startswith("nearstep: ")]
        shown = f"{done.args}\n{done.stdout}\n{done.stderr}"
        self.assertEqual(done.returncode, 2, shown)
        self.assertEqual(len(sentences), 1, shown)
        for word in words:
            self.assertIn(word, sentences[0])
        self.assertRegex(sentences[0], r"[.?]$")

    def test_settings(self):
        runs = [
            (2, self.arguments(state=f"state-{number}", flags=[f"--set={setting}" for setting in settings]))
            for number, (settings, _) in enumerate(SETTINGS.values())
        ]
        for (name, (_, words)), (ranks, arguments) in zip(SETTINGS.items(), runs):
            with self.subTest(name):
                self.assert_refused(program.run_in_turn(ranks, *arguments), words)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["text.txt"], "nothing may be created")

    def test_commands(self):
        runs = [(0, arguments) for arguments, _ in COMMANDS.values()]
        for (name, (arguments, words)), done in zip(COMMANDS.items(), program.run_all(runs)):
            with self.subTest(name):
                self.assert_refused(done, words)
            with self.subTest(name, ranks=2):
                self.assert_refused(program.run_in_turn(2, *arguments), words)

    def test_files(self):
        short = self.folder / "short.txt"
        short.write_text("too short")
        empty = self.folder / "empty"
        empty.mkdir()
        for arguments, words in (
            (self.arguments(data__train=f'"{short}"'), ["data.train"]),
            (self.arguments(data__train=f'"{empty}"'), [str(empty)]),
            (self.arguments(flags=["--json", self.folder / "no/summary.json"]), ["no/summary.json"]),
            (self.arguments(flags=["--metrics", self.folder / "no/metrics"]), ["no/metrics"]),
            (self.arguments(flags=["--resume"]), ["--resume", "checkpoint"]),
            (self.arguments(flags=["--resume", "--fresh"]), ["--resume", "--fresh", "leave one of them out"]),
            (self.arguments(flags=["--from", self.folder / "gone.h5"]), ["gone.h5"]),
            (["compare", *self.arguments()[1:], "--modes", "base,fast"], ["fast"]),
            (["compare", *self.arguments()[1:], "--modes", "base,su+o:csd.state=q5"], ["csd.state", "compact"]),
            (["compare", *self.arguments()[1:], "--modes", "su+o:compact"], ["compact", "KEY=VALUE"]),
            (["compare", *self.arguments()[1:], "--modes", "base:compress.codec=topk"], ["topk", "su+o+c"]),
            (["compare", *self.arguments()[1:], "--devices", "0"], ["--devices"]),
        ):
            with self.subTest(arguments=arguments):
                self.assert_refused(program.run(2, *arguments), words)

    def names(self):
        return sorted(str(path) for path in self.folder.rglob("*"))

    def test_links_that_lead_nowhere_and_names_that_are_not_utf8(self):
        lost, latin = self.folder / "lost", os.fsdecode(os.fsencode(self.folder) + b"/caf\xe9")
        lost.symlink_to("gone")
        before = self.names()
        for name, (keys, words) in {
            "checkpoints below a link": (
                {"checkpoint__path": f'"{lost}/saved"', "csd__durability": '"checkpoint"'},
                ["lost is a link that leads nowhere"],
            ),
            "state at a link": ({"csd__path": f'"{lost}"'}, ["csd.path", "lost is a link that leads nowhere"]),
            "text at a link": ({"data__train": f'"{lost}"'}, ['lost" is a link that leads nowhere']),
            "state that is not UTF-8": ({"csd__path": latin}, ["csd.path", "not UTF-8"]),
            "text that is not UTF-8": ({"data__train": f'"{latin}"'}, ["data.train", "not UTF-8"]),
        }.items():
            with self.subTest(name):
                # The program is started anew: the server of commands takes JSON, which has no such names.
                self.assert_refused(program.run(1, *self.arguments(**keys)), words)
                self.assertEqual(self.names(), before)

    def test_files_whose_names_are_not_utf8(self):
        folder = pathlib.Path(os.fsdecode(os.fsencode(self.folder) + b"/caf\xe9"))
        folder.mkdir()
        config = folder / os.fsdecode(b"t\xe9st.toml")
        config.write_bytes(b"\xef\xbb\xbf" + (program.ROOT / program.TINY).read_bytes())
        arguments = self.arguments(config=config, csd__path="state", train__steps=2, **program.SHORT_ROWS)
        done = subprocess.run(
            [
                program.PROGRAM_FORKED,
                *map(str, arguments),
                "--json",
                config.with_suffix(".json"),
                "--metrics",
                config.with_suffix(".steps"),
            ],
            cwd=folder,
            env=program.environment(),
            capture_output=True,
            text=True,
            errors="replace",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(config.with_suffix(".json").read_text())["config"], "t?st")
        exported = program.run(
            0, "export", folder / "state/checkpoints/step-00000002.h5", folder / "model", "--format", "safetensors"
        )
        self.assertEqual(exported.returncode, 0, exported.stderr)

    def test_a_start_beside_the_state_of_another_user(self):
        if os.geteuid() != 0:
            self.skipTest("only root may give files away")
        self.train(train__stop_at=2)
        for path in (self.folder / "state").glob("rank-*"):
            os.chown(path, 65534, 65534)
        before = self.names()
        self.assert_refused(program.run_in_turn(1, *self.arguments(flags=["--resume"])), ["another user"])
        self.assertEqual(self.names(), before)

    def test_damaged_checkpoints(self):
        summary = self.train(train__stop_at=3, csd__durability="checkpoint")
        index = program.pathlib.Path(summary["checkpoint"])
        folder = index.parent
        rank_file = sorted(folder.glob("*.rank-*"))[0]
        good = {path: path.read_bytes() for path in (index, rank_file)}
        flipped = bytearray(good[rank_file])
        flipped[len(flipped) // 4] ^= 1  # among the masters, which an export reads, too
        for path, content in ((rank_file, bytes(flipped)), (index, b"hello")):
            with self.subTest(path.name):
                path.write_bytes(content)
                before = program.content(folder)
                self.assert_refused(program.run(2, *self.arguments(flags=["--resume"])), [path.name])
                self.assert_refused(program.run(0, "export", index, self.folder / "out.h5"), [path.name])
                self.assertEqual(program.content(folder), before)
                self.assertFalse((self.folder / "out.h5").exists())
                path.write_bytes(good[path])
        self.train(train__stop_at=3, flags=["--resume"])  # works again once repaired

    def test_state_that_another_process_uses(self):
        self.train(train__stop_at=2)
        state = sorted((self.folder / "state").glob("*.state"))[0]
        before = program.content(self.folder / "state/checkpoints"), state.read_bytes()
        with open(state, "rb+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assert_refused(program.run(2, *self.arguments(flags=["--resume"])), [state.name])
            preflight = ["preflight", *self.arguments()[1:], "--ranks", 2]
            self.assert_refused(program.run(0, *preflight), [state.name, "in use"])
            self.assertEqual((program.content(self.folder / "state/checkpoints"), state.read_bytes()), before)

    def small_disk(self, size):
        small = self.folder / "small"
        small.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", small], capture_output=True)
        if mounted.returncode != 0:
            raise unittest.SkipTest("a small file system cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", small], check=True)
        return small

    def test_a_disk_that_is_full(self):
        small = self.small_disk("1m")
        done = program.run(2, *self.arguments(csd__path=f'"{small}/state"'))
        self.assert_refused(done, ["small/state", "free"])
        self.assertEqual(list(small.rglob("*.state")), [])

    def test_a_disk_that_is_full_for_all_ranks_together_keeps_what_it_holds(self):
        small = self.small_disk("200m")
        place = {"csd__path": f'"{small}/state"', "csd__per_rank": 1, "train__stop_at": 2}
        program.succeed(2, *self.arguments(**place, csd__state='"compact"'))
        before = program.content(small)
        size = max(path.stat().st_size for path in small.rglob("*.state"))
        with open(small / "other", "wb") as other:  # a rank's fp32 state fits, and those of two ranks do not
            os.posix_fallocate(other.fileno(), 0, shutil.disk_usage(small).free - 3 * size)
        done = program.run(2, *self.arguments(**place, csd__state='"fp32"', flags=["--fresh"]))
        self.assert_refused(done, ["small/state", "free"])
        os.remove(small / "other")
        self.assertEqual(program.content(small), before)

    def test_a_disk_that_is_full_at_a_later_checkpoint(self):
        small = self.small_disk("7m")
        words = self.arguments(
            train__steps=4, checkpoint__every=2, checkpoint__path=f'"{small}/saved"', csd__durability='"checkpoint"'
        )
        done = program.run(1, *words)
        self.assertEqual(done.returncode, 1, done.stderr)
        (said,) = [line for line in done.stderr.splitlines() if line.startswith("nearstep: ")]
        self.assert_states(
            said,
            "small/saved/step-00000004.attempt-0.rank-00000.h5 (No space left on device)",
            "needs",
            "MB",
            "free some space",
            "whole",
        )
        first = small / "saved/step-00000002.h5"
        program.succeed(0, "inspect", first)
        done = program.run(0, "export", first, small / "model.h5")
        self.assert_refused(done, ["small/model.h5 (No space left on device)", "MB", "free some space"])
        self.assertEqual({path.name.partition(".")[0] for path in small.rglob("*.*")}, {"step-00000002"})
        subprocess.run(["mount", "-o", "remount,size=20m", small], check=True)
        self.assertIn(f"resumed from {first}", program.succeed(1, *words, "--resume").stdout)


if __name__ == "__main__":
    program.main()
