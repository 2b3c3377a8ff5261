"""Tests which files of the checkout tests/run_tests takes as read by a test, and what it says of skipped tests.
Standard library only."""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
import verdict  # noqa: E402


def module_of(path):
    loader = importlib.machinery.SourceFileLoader(path.name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.name, loader))
    loader.exec_module(module)
    return module


run_tests = module_of(ROOT / "tests/run_tests")


class Declared(unittest.TestCase):
    def test_all_but_sources_and_what_is_named(self):
        for reads, declared, hidden in (
            (
                "*:docs/a.md:src/base",
                ("launch/run", "tests/x/y.py", "docs/a.md", "src/base/log.cpp"),
                ("docs/b.md", "src/bases.cpp", "docs/a.md.cu"),
            ),
            (".", ("docs/b.md", "src/a.cpp"), ()),
            ("configs", ("configs/a.toml", "configs"), ("launch/run", "configs.toml")),
        ):
            for name in declared + hidden:
                self.assertEqual(verdict.is_declared(name, reads), name in declared, f"{name} of {reads}")

    def test_reading_or_naming_any_other_file_fails(self):
        for statement, passes in (
            ("open(verdict.ROOT + '/README.md')", False),
            ("open(verdict.ROOT + '/CMakeLists.txt')", True),
            ("subprocess.run(['true', 'src/app/main.cpp'], cwd=verdict.ROOT)", False),
            ("subprocess.run(['true', 'CMakeLists.txt'], cwd=verdict.ROOT)", True),
        ):
            done = subprocess.run(
                [sys.executable, "-c", f"import subprocess, verdict\n{statement}"],
                cwd=ROOT / "tests/support",
                capture_output=True,
                text=True,
                env=dict(os.environ, NEARSTEP_READS="*"),
                check=False,
            )
            self.assertEqual(done.returncode == 0, passes, done.stderr)
            self.assertEqual("add it to READS" in done.stderr, not passes, statement)

    def test_each_test_declares(self):
        for test in run_tests.listed(os.environ["NEARSTEP_BUILD"]):
            self.assertIn("NEARSTEP_READS=", " ".join(test["properties"]["ENVIRONMENT"]), test["name"])

    def test_one_that_declares_nothing_reads_all(self):
        digests = run_tests.Digests(pathlib.Path(os.environ["NEARSTEP_BUILD"]))
        with unittest.mock.patch.object(verdict, "is_declared", return_value=False) as asked:
            digests.test({"command": ["true"], "properties": {"LABELS": [], "ENVIRONMENT": []}})
        self.assertEqual({call.args[1] for call in asked.call_args_list}, {"."})


SKIPPING = """
import sys, unittest
sys.path.append({support!r})
import verdict
@unittest.skipIf({whole}, "no torch here")
class Whole(unittest.TestCase):
    def test_one(self): pass
class Part(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if {whole}: raise unittest.SkipTest("no GPU\\nhere")
    def test_cases(self):
        for name in "ab":
            with self.subTest(case=name):
                if name == "b": self.skipTest("no b")
    def test_two(self): self.assertTrue({passes})
verdict.main()
"""


class Skipped(unittest.TestCase):
    def run_program(self, folder, name, **values):
        path = pathlib.Path(folder, f"{name}.py")
        path.write_text(
            SKIPPING.format(support=str(ROOT / "tests/support"), **{"whole": False, "passes": True, **values})
        )
        return path

    def test_python_programs_and_googletest_say_what_they_skipped_and_ctest_what_did_not_run(self):
        with tempfile.TemporaryDirectory() as folder:
            programs = {"whole": {"whole": True}, "part": {}, "broken": {"passes": False}}
            commands = {
                name: [sys.executable, str(self.run_program(folder, name, **values))]
                for name, values in programs.items()
            }
            commands["google"] = [
                "printf",
                "[ RUN      ] A.B\\n[  SKIPPED ] A.B (12 ms)\\n[  SKIPPED ] 1 test, listed below:\\n[  SKIPPED ] "
                "A.B\\n",
            ]
            quoted = lambda words: " ".join(f'"{word}"' for word in words)
            build = pathlib.Path(folder)
            (build / "CTestTestfile.cmake").write_text(
                "".join(
                    f"add_test({name} {quoted(command)})\nset_tests_properties({name} PROPERTIES SKIP_RETURN_CODE "
                    f"{verdict.SKIPPED})\n"
                    for name, command in commands.items()
                )
            )
            said = subprocess.run(["ctest"], cwd=build, capture_output=True, text=True, check=False).stdout
            self.assertRegex(said, r"whole \.+\*\*\*Skipped")
            self.assertRegex(said, r"part \.+ +Passed")
            self.assertRegex(said, r"broken \.+\*\*\*Failed")
            found = run_tests.skipped_in((build / "Testing/Temporary/LastTest.log").read_text())
        subtest = "Part.test_cases (case='b'): no b"
        self.assertEqual(
            found,
            {
                "whole": ["Part: no GPU here", "Whole.test_one: no torch here"],
                "part": [subtest],
                "broken": [subtest],
                "google": ["A.B"],
            },
        )
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            run_tests.say_skipped(found)
        self.assertIn("run_tests: skipped: whole: Part: no GPU here\n", shown.getvalue())
        with open(ROOT / "tests/run") as script:
            self.assertIn("run_tests: skipped: ", script.read())

    def test_every_python_program_ends_so(self):
        for path in ROOT.glob("tests/*/*_test.py"):
            text = path.read_text()
            self.assertNotIn("unittest.main(", text.partition("class Skipped")[0], path)
            self.assertRegex(text, r"(verdict|launcher|program|cluster|slurm_jobs)\.main\(\)", path)

    def test_ctest_knows_the_code_of_every_test(self):
        build = os.environ["NEARSTEP_BUILD"]
        for test in run_tests.listed(build):
            self.assertEqual(test["properties"].get("SKIP_RETURN_CODE"), verdict.SKIPPED, test["name"])


if __name__ == "__main__":
    verdict.main()
