"""`nearstep report --follow`: a page that grows with the metrics file of a run."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import results
import verdict

HANG_S = 1200


class Follow(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="nearstep-report-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "report.html"
        self.lines = results.text_of(
            results.metrics_lines(losses=(3.0, 2.5, 2.25, 2.125), ended="finished")
        ).splitlines(keepends=True)
        self.metrics = self.folder / "steps.jsonl"
        self.metrics.write_text("".join(self.lines[:3]))

    def start(self, *arguments):
        self.following = subprocess.Popen(
            [sys.executable, "-m", "nearstep_report", "--follow", *map(str, arguments), "--every", "0.1"],
            env=dict(os.environ, PYTHONPATH=str(results.ROOT / "python")),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.addCleanup(self.following.communicate)
        self.addCleanup(self.following.kill)

    def wait_for(self, words):
        end = time.monotonic() + HANG_S
        while not self.page.exists() or words not in self.page.read_text():
            self.assertIsNone(self.following.poll(), self.following.stderr.read() if self.following.poll() else "")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)
        return self.page.read_text()

    def append(self, text):
        with self.metrics.open("a") as file:
            file.write(text)

    def test_the_page_grows_with_the_run_and_ends_with_it(self):
        self.start(self.folder, "--tensorboard", self.folder / "board")
        page = self.wait_for("<dd>2 of 4</dd>")
        self.assertIn('<meta http-equiv="refresh" content="1">', page)
        self.assertIn(">running<", page)
        self.append(self.lines[3] + self.lines[4][:30])
        self.wait_for("<dd>3 of 4</dd>")
        (self.folder / "summary.json").write_text(json.dumps(results.summary(losses=(3.0, 2.5, 2.25, 2.125))))
        self.append(self.lines[4][30:] + "".join(self.lines[5:]))
        said, err = self.following.communicate(timeout=HANG_S)
        self.assertEqual((self.following.returncode, err), (0, ""))
        self.assertIn("the run has finished", said)
        page = self.page.read_text()
        self.assertNotIn("http-equiv", page)
        for words in (">finished<", "<dd>4 of 4</dd>", "<dd>4000</dd>", "Wear of the drives"):
            self.assertIn(words, page)
        self.assertEqual(len(list((self.folder / "board/steps").iterdir())), 1)

    def test_ctrl_c_leaves_a_page_that_stands_still(self):
        self.start(self.metrics, "--out", self.page)
        self.wait_for("<dd>2 of 4</dd>")
        self.following.send_signal(signal.SIGINT)
        said, err = self.following.communicate(timeout=HANG_S)
        self.assertEqual((self.following.returncode, err.strip()), (0, ""))
        page = self.page.read_text()
        self.assertNotIn("http-equiv", page)
        self.assertIn("not followed any more", page)
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.startswith(".")], [])


if __name__ == "__main__":
    verdict.main()
