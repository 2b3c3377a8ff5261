"""`nearstep report` starts the Python program nearstep-report: on a run's files, on a run under way, and without it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import program


class Report(program.Scenario):
    starts_anew = True

    def test_a_run_is_followed_to_its_end_and_reported(self):
        metrics, page = self.folder / "steps.jsonl", self.folder / "live.html"
        metrics.touch()
        following = subprocess.Popen(
            [program.PROGRAM, "report", "--follow", metrics, "--every", "0.2", "--out", page],
            cwd=program.ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(following.communicate)
        self.addCleanup(following.kill)
        self.assertIn("following", following.stdout.readline())
        self.assertIn("http-equiv", page.read_text())
        summary = self.train(ranks=1, train__steps=4, train__evaluate_every=2, flags=["--metrics", metrics])
        said, err = following.communicate(timeout=program.HANG_S)
        self.assertEqual((following.returncode, err), (0, ""))
        self.assert_states(said, "finished", page)
        self.assertIn("<dd>4 of 4</dd>", page.read_text())
        self.assertNotIn("http-equiv", page.read_text())

        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual(
            (lines[0]["last_step"], lines[0]["has_shaped_links"], lines[-1]),
            (4, False, {"step": 4, "ended": "finished"}),
        )
        done = program.succeed(2, "report", self.folder)
        self.assertEqual(done.stdout.count("report of"), 1)
        page = (self.folder / "report.html").read_text()
        for words in (
            f"{summary['heldout_loss']:.4f}",
            summary["masters_xxh3"],
            "Wear of the drives",
            "Seconds of each step",
        ):
            self.assertIn(words, page)

    def test_prometheus_file_counts_what_all_processes_write_to_drives(self):
        file, lines = self.folder / "run.prom", self.folder / "lines.jsonl"

        def written():
            found = re.findall(r'^nearstep_drive_written_bytes_total{rank="(.)",.*} (.*)$', file.read_text(), re.M)
            return {int(rank): float(count) for rank, count in found}

        keys = {"train__steps": 4, "checkpoint__path": self.folder / "checkpoints"}
        first = self.train(**keys, train__stop_at=2, flags=["--metrics", file, "--metrics", lines])
        self.assertEqual(written(), dict(enumerate(first["endurance"]["written_bytes"])))
        second = self.train(**keys, flags=["--metrics", file, "--resume"])
        self.assertEqual(len(lines.read_text().splitlines()), 1 + 2 + 1 + 1)
        sums = map(sum, zip(first["endurance"]["written_bytes"], second["endurance"]["written_bytes"]))
        self.assertEqual(written(), dict(enumerate(sums)))
        self.assertRegex(file.read_text(), r"(?m)^nearstep_steps 4$")
        done = program.run(1, *self.arguments(**keys, flags=["--metrics", file, "--metrics", f"{file}.prom"]))
        self.assert_refusal(done, "two files of one kind", f"{file}.prom")

    def test_a_log_has_as_many_lines_on_more_ranks(self):
        logs = []
        for ranks in (1, 4):
            keys = {"train__steps": 2, "train__global_batch": 4, "state": f"state-{ranks}"}
            done = program.succeed(ranks, *self.arguments(**keys, checkpoint__path=self.folder / f"saved-{ranks}"))
            logs.append(len((done.stdout + done.stderr).splitlines()))
        self.assertEqual(logs[0], logs[1])

    def test_shaped_seconds_are_told_from_measured_ones(self):
        self.train(
            ranks=1,
            train__steps=2,
            link__device_read_gb_s=0.03,  # longer than any forward, which would hide the update
            link__device_write_gb_s=0.02,
            link__host_gb_s=0.04,
            flags=["--metrics", self.folder / "steps.jsonl"],
        )
        program.succeed(0, "report", self.folder / "summary.json", self.folder / "steps.jsonl")
        page = (self.folder / "report.html").read_text()
        for words in (
            "tiny, shaped: update",
            "tiny, modelled: update",
            "training, measured: step 1",
            '<td class="shaped">',
        ):
            self.assertIn(words, page)

    def test_without_the_python_program_it_says_what_to_install(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        place = pathlib.Path(folder.name) / "build/release"
        place.mkdir(parents=True)
        alone = shutil.copy(program.PROGRAM, place)
        # A program of somebody's in a folder above is not started.
        other = place.parents[1] / ".venv/bin/nearstep-report"
        other.parent.mkdir(parents=True)
        program.make_script(other, "echo started")
        done = subprocess.run(
            [alone, "report", self.folder], env=dict(os.environ, PATH="/nowhere"), text=True, capture_output=True
        )
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(
            done.stderr,
            "nearstep: nearstep-report cannot be started (No such file or directory): run launch/setup, or pip "
            "install . and put its folder on the PATH.\n",
        )


if __name__ == "__main__":
    program.main()
