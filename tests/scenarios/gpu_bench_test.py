"""The measurements for GPUs run through on a tiny model, with or without a GPU, and refuse wrong input."""

import json
import shlex
import sys

import program


class GpuBench(program.Scenario):
    def bench(self, name, *options):
        return program.call(
            sys.executable, program.ROOT / "bench" / name, "--program", program.PROGRAM_FORKED, *options
        )

    def rows(self, name, *options, lines_of_a_row=1):
        """The JSON lines of a measurement that must succeed and print a table."""
        file = self.folder / "lines.jsonl"
        done = self.bench(name, "--smoke", "--data", self.text, "--json", file, *options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        table = [line for line in done.stdout.splitlines() if line.startswith("|")]
        self.assertEqual(len(table), len(lines) / lines_of_a_row + 2, done.stdout)
        self.assertEqual(len({line.count("|") for line in table}), 1)
        return lines

    def test_gpt2_xl(self):
        lines = self.rows(
            "gpt2_xl", "--folder", f"disk={self.folder}", "--ranks", "1,2", "--rows", 2, "--steps", 2, "--devices", 1
        )
        self.assertEqual([line["devices"] for line in lines], [1, 2])
        for line in lines:
            self.assertGreater(line["overlap"]["together"], 0)
            self.assertGreater(line["model_operations_per_token"], 6 * line["parameters"])

    def test_gpu_quality(self):
        lines = self.rows(
            "gpu_quality", "--folder", self.folder, "--runs", "base,su+o,dense,q4", "--rows", 2, "--steps", 3
        )
        masters = [line["masters_xxh3"] for line in lines]
        self.assertEqual(masters[0], masters[1], "base and su+o")
        self.assertEqual(masters[0], masters[2], "su+o+c with dense gradients")
        self.assertNotEqual(masters[0], masters[3], "q4")

    def test_gpu_quality_of_several_at_once(self):
        runs = ["base", "su+o", "q4", "state-bf16", "topk-0.1", "q8-feedback"]
        lines = self.rows(
            "gpu_quality", "--folder", self.folder, "--runs", ",".join(runs), "--rows", 2, "--steps", 3, "--at-once", 2
        )
        masters = {line["run"]: line["masters_xxh3"] for line in lines}
        self.assertEqual(masters.keys(), set(runs))
        self.assertEqual(masters["base"], masters["su+o"])
        self.assertEqual(len(set(masters.values())), len(runs) - 1)

    def test_gpu_quality_goes_on(self):
        first = self.rows("gpu_quality", "--folder", self.folder, "--runs", "base,su+o", "--rows", 2, "--steps", 2)
        lines = self.rows("gpu_quality", "--folder", self.folder, "--runs", "base,su+o,q8", "--rows", 2, "--steps", 2)
        self.assertEqual(lines[:2], first)
        self.assertEqual([line["run"] for line in lines], ["base", "su+o", "q8"])

    def test_gpu_quality_of_seeds_exports_the_first(self):
        models = self.folder / "new" / "models"
        lines = self.rows(
            "gpu_quality",
            "--folder",
            self.folder,
            "--runs",
            "topk-compact-feedback",
            "--rows",
            2,
            "--steps",
            4,
            "--evaluate-every",
            2,
            "--seeds",
            2,
            "--export",
            models,
            lines_of_a_row=2,
        )
        self.assertEqual([line["settings"]["train.seed"] for line in lines], [1, 2])
        self.assertNotEqual(lines[0]["losses"], lines[1]["losses"])
        for line in lines:
            self.assertEqual([step for step, _ in line["heldout"]], [2, 4])
            self.assertEqual(len(line["step_s"]), 4)
        self.assertTrue((models / "topk-compact-feedback" / "model.safetensors").exists())

    def test_plans_are_near_what_was_measured(self):
        file = self.folder / "planned.jsonl"
        done = self.bench("planned", "--json", file)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines, published = (
            [json.loads(line) for line in path.read_text().splitlines()]
            for path in (file, program.ROOT / "docs/results/data/planned.jsonl")
        )
        self.assertEqual([line["row"] for line in lines], [line["row"] for line in published])
        for line, other in zip(lines, published):
            self.assertAlmostEqual(line["planned_s"] / other["planned_s"], 1, delta=0.01, msg="run bench/planned again")
        near = [line for line in lines if abs(line["planned_s"] / line["measured_s"] - 1) < 0.15]
        self.assertGreater(len(near), len(lines) * 0.9)

    def test_a_plan_that_is_pasted_trains(self):
        [line] = self.rows("pasted_plans", "--drive", self.folder, "--only", "xl-logs")
        self.assertEqual(line["pasted"]["mode"], "su+o+c")
        self.assertGreater(min(line["planned_s"], line["measured_s"], line["terms_s"]["T_memory"]), 0)

    def test_exports_are_measured_beside_the_drive(self):
        for line in self.rows("export_rate", "--folder", self.folder, "--rounds", 1):
            self.assertGreater(min(line["gb_s"], line["drive_gb_s"]), 0)

    def killed_run(self, *options):
        """Returns the process and the line of a tiny model's runs, of which one is killed."""
        file = self.folder / "killed.jsonl"
        given = ("--smoke", "--data", self.text, "--folder", self.folder, "--row", "nearstep-7b", "--json", file)
        done = self.bench("killed_run", *given, *options)
        return done, json.loads(file.read_text()) if file.exists() else None

    def test_a_killed_run_trains_beside_an_undisturbed_one(self):
        wanted = ("--steps", 200, "--kills", 1, "--every", 0.1, "--limit", 500, "--rows-per-step", 4, "--gpus", "0,1")
        done, line = self.killed_run(*wanted)
        self.assertEqual(done.returncode, 0, done.stderr)
        lives = line["killed"]["lives"]
        self.assertEqual([(life["devices"], life["killed"]) for life in lives], [(2, True), (4, False)])
        self.assertEqual(lives[1]["begins_at"], lives[0]["ends_at"] - line["repeated_steps"])
        self.assertEqual((line["lost_steps"], line["compared_steps"], line["largest_difference"]), (0, 200, 0))
        self.assertEqual(line["tokens_per_step"], 4 * 32)
        for life in [*lives, line["undisturbed"]]:
            self.assertAlmostEqual(life["start_s"], life["model_s"] + life["resume_s"], delta=0.001)
            self.assertGreater(min(life["model_s"], life["resume_s"], life["first_step_s"]), 0)

    def test_a_killed_run_ends_at_its_limit_and_says_what_was_reached(self):
        done, line = self.killed_run("--steps", 200, "--limit", 0.2, "--gpus", "0,1")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual((line["kills"], line["compared_steps"], line["killed"]["lives"]), (0, 0, []))
        self.assertEqual([life["devices"] for life in line["unbegun"]], [2])
        self.assert_states(done.stderr, "0 of 5 kills", "0 of 200 steps")

    def test_a_killed_run_refuses_what_it_cannot_do(self):
        for option, value in (("--gpus", "0"), ("--gpus", "1,1"), ("--gpus", "a,b"), ("--rows-per-step", 3)):
            done, line = self.killed_run(option, value)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assert_states(done.stderr, option)
            self.assertIsNone(line)

    def test_gpu_quality_without_time_begins_nothing(self):
        done = self.bench(
            "gpu_quality", "--smoke", "--data", self.text, "--folder", self.folder, "--runs", "base", "--budget", 0
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_states(done.stderr, "base of seed 1", "--budget")

    def test_state_is_removed(self):
        self.rows("gpu_quality", "--folder", self.folder / "state", "--runs", "base,dense", "--rows", 2, "--steps", 1)
        self.assertEqual(list((self.folder / "state").iterdir()), [])

    def test_all_takes_folders_with_spaces(self):
        names = ("out", "disk", "data")
        folders = {name: self.folder / f"a {name} of 'some' {{words}}" for name in names}
        done = self.bench("all", "--list", *(word for name in names for word in (f"--{name}", folders[name])))
        self.assertEqual(done.returncode, 0, done.stderr)
        words = [word for line in done.stdout.splitlines() if line.startswith("    ") for word in shlex.split(line)]
        self.assertEqual(
            [
                word
                for word in words
                if "words}" in word and not any(str(folder) in word for folder in folders.values())
            ],
            [],
        )
        self.assertEqual(
            [name for name, folder in folders.items() if not any(str(folder) in word for word in words)], []
        )
        done = self.bench("all", "--out", folders["out"], "--only", "^scaling$")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(sorted(path.name for path in folders["out"].iterdir()), ["scaling.jsonl", "work"])
        self.assertGreater(len((folders["out"] / "scaling.jsonl").read_text().splitlines()), 1)

    def test_what_is_wrong_is_one_sentence(self):
        for name, options, word in (
            ("gpu_quality", ["--folder", "/proc/nowhere"], "/proc/nowhere"),
            ("gpt2_xl", ["--folder", self.folder], "NAME=FOLDER"),
            ("gpt2_xl", ["--folder", f"a={self.folder}", "--ranks", "0"], "--ranks"),
            ("gpu_quality", ["--folder", self.folder, "--runs", "zip"], "zip"),
            ("gpu_quality", ["--folder", self.folder, "--ranks", "2", "--gpus", "1"], "--gpus"),
            ("gpu_quality", ["--folder", self.folder, "--data", "/nowhere/text"], "/nowhere/text"),
        ):
            done = self.bench(name, *options)
            self.assert_refusal(done, word)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)


if __name__ == "__main__":
    program.main()
