"""Tests what launch/setup does for a user who cannot become root. A user namespace gives such a user; dpkg-query, sudo
and the Python of the virtual environment are stand-ins, so nothing is installed. Standard library only."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
import verdict

AS_USER = ("unshare", "--user")
ABSENT = "libcli11-dev"


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.program("bin/dpkg-query", f'[[ "${{@: -1}}" == "${{ABSENT-}}" ]] || printf installed')
        self.program("bin/sudo", "exit 1")
        self.program("venv/bin/python", 'case "$*" in *build-dir*) exit "$BUILD" ;; -) : ;; *) [[ $1 != -m ]] ;; esac')

    def program(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)

    def setup(self, *options, absent="", build=0):
        """Runs the script. Returns its exit code and its lines."""
        environment = {
            **os.environ,
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "NEARSTEP_VENV": str(self.root / "venv"),
            "ABSENT": absent,
            "BUILD": str(build),
        }
        done = subprocess.run(
            [*AS_USER, SOURCE / "launch/setup", *options],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def test_nothing_is_missing(self):
        self.assertEqual(self.setup("--debian"), (0, ""))
        code, said = self.setup()
        self.assertEqual((code, said.splitlines()[-1]), (0, "setup: ready"))

    def test_a_missing_package_is_named_and_the_rest_is_done(self):
        sentence = f"run 'apt-get install {ABSENT}' as root\n"
        code, said = self.setup("--debian", absent=ABSENT)
        self.assertEqual(code, 2)
        self.assertTrue(said.endswith(sentence), said)
        code, said = self.setup(absent=ABSENT, build=1)
        self.assertEqual((code, f"could not be built, without {ABSENT}: see" in said), (2, True), said)
        code, said = self.setup(absent=ABSENT)
        self.assertEqual((code, said.splitlines()[-1]), (0, f"setup: ready, without {ABSENT}"))
        self.assertIn(sentence, said)


if __name__ == "__main__":
    if subprocess.run([*AS_USER, "true"], capture_output=True, check=False).returncode != 0:
        verdict.end_skipped("this system gives no user namespaces")
    verdict.main()
