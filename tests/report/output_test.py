"""Tests what Python programs write to a name of the user's: files are replaced, all else is written through."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PYTHON = pathlib.Path(__file__).resolve().parents[2] / "python"
sys.path[:0] = [str(PYTHON), str(pathlib.Path(__file__).resolve().parents[1] / "support")]
import nearstep_output
import verdict


class Output(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, path, content=b"new"):
        nearstep_output.check_writable(path)
        with nearstep_output.open_output(path) as file:
            file.write(b"?" + content)
            file.seek(0)
            file.write(b"!")

    def test_a_file_is_replaced_when_it_is_whole(self):
        path = self.folder / "page"
        path.write_bytes(b"old")
        path.chmod(0o640)
        with self.assertRaises(ZeroDivisionError), nearstep_output.open_output(path) as file:
            file.write(b"half")
            1 / 0
        self.assertEqual(path.read_bytes(), b"old")
        self.write(path)
        self.assertEqual(
            (path.read_bytes(), path.stat().st_mode & 0o777, list(self.folder.iterdir())), (b"!new", 0o640, [path])
        )

    def test_a_link_stays(self):
        (self.folder / "link").symlink_to("target")
        for content in (b"one", b"two"):
            self.write(self.folder / "link", content)
            self.assertEqual((self.folder / "target").read_bytes(), b"!" + content)
        self.assertTrue((self.folder / "link").is_symlink())

    def test_a_pipe_and_a_device_are_written_to(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        self.write(pipe)
        self.assertEqual(os.read(reader, 10), b"!new")
        self.write("/dev/null")
        self.assertTrue(pipe.is_fifo() and pathlib.Path("/dev/null").is_char_device())

    def test_standard_output_goes_on_behind_it(self):
        code = (
            "import nearstep_output\nprint('before')\nwith nearstep_output.open_output('/dev/stdout') as file: "
            "file.write(b'page\\n')\nprint('behind')"
        )
        out = self.folder / "out"
        with out.open("w") as file:
            subprocess.run([sys.executable, "-c", code], cwd=PYTHON, stdout=file, check=True)
        self.assertEqual(out.read_text(), "before\npage\nbehind\n")

    def test_what_cannot_be_written_is_an_error(self):
        for path in (self.folder, self.folder / "none" / "page", "/dev/null/page"):
            for use in (nearstep_output.check_writable, lambda path: nearstep_output.open_output(path).__enter__()):
                with self.subTest(path), self.assertRaises(OSError):
                    use(path)

    def test_files_of_a_run_are_not_replaced(self):
        (self.folder / "link").symlink_to("rank-0.manifest")
        for name in (
            "rank-0.manifest",
            "rank-12.set-1.manifest",
            "rank-0.device-3.state",
            "rank-0.program-1",
            "step-00000020.h5",
            "step-00000020.attempt-0.rank-00000.h5",
            "step-00000020.extra.json",
            "link",
        ):
            self.assertTrue(nearstep_output.would_replace(self.folder / name, []), name)
        self.assertFalse(nearstep_output.would_replace(self.folder / "rank-0.manifest.html", []))

    def test_lines_that_cannot_be_printed(self):
        code = (
            "import nearstep_output\ntry: nearstep_output.say('\u00fc')\nexcept OSError as error: raise "
            "SystemExit(nearstep_output.describe(error)[0])"
        )
        for out, locale, expected in (
            ("/dev/full", "utf-8", (1, "the standard output")),
            (self.folder / "out", "ascii", (0, "")),
        ):
            with open(out, "w") as file:
                done = subprocess.run(
                    [sys.executable, "-c", code],
                    cwd=PYTHON,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONIOENCODING": locale},
                )
            self.assertEqual(done.returncode, expected[0], done.stderr)
            self.assertTrue(done.stderr.startswith(expected[1]) and "Traceback" not in done.stderr, done.stderr)
        self.assertEqual((self.folder / "out").read_text(), "\\xfc\n")

    def test_a_write_that_fails_names_the_file(self):
        with self.assertRaises(OSError) as caught:
            self.write("/dev/full")
        self.assertEqual(caught.exception.filename, "/dev/full")


if __name__ == "__main__":
    verdict.main()
