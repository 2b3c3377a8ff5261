"""What tests/run_tests takes for the files that a script reads, and what it says of skipped tests. Standard library only."""
import ast
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/support"))
import verdict  # noqa: E402


def module_of(path):
    loader = importlib.machinery.SourceFileLoader(path.name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.name, loader))
    loader.exec_module(module)
    return module


run_tests = module_of(ROOT / "tests/run_tests")


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


class FilesNamed(unittest.TestCase):
    def test_whatever_python_imports_is_found(self):
        scripts = run_tests.candidates(run_tests.files_of_checkout())
        checked = 0
        for path in scripts:
            if not path.endswith(".py"):
                continue
            found = run_tests.files_named(path, scripts)
            for name in imports_of(ROOT / path):
                beside = str(pathlib.Path(path).with_name(f"{name}.py"))
                if beside in scripts:
                    checked += 1
                    self.assertIn(beside, found, f"{path} imports {name}")
        self.assertGreater(checked, 50)

    def test_files_that_are_named_and_what_they_import_in_turn_and_no_others(self):
        scripts = run_tests.candidates(run_tests.files_of_checkout())
        for script, read, unread in (("python/equality_test.py", {"python/equality_worker.py", "python/in_memory.py"}, {"python/durable_worker.py"}),
                                     ("scenarios/restart_campaign_test.py", {"campaigns/restart_campaign", "campaigns/restart_round.py", "scenarios/program.py"},
                                      {"campaigns/same_bits", "scenarios/crash_test.py"}),
                                     ("scenarios/gpu_bench_test.py", {"bench/gpu_quality", "bench/gpu_runs.py"}, {"python/equality_test.py"}),
                                     ("scenarios/embedding_test.py", {"embedding/vision_transformer.cpp"}, {"bench/gpu_quality"})):
            found = {path.removeprefix("tests/") for path in run_tests.files_named(f"tests/{script}", scripts)}
            self.assertIn(script, found)
            self.assertLessEqual(read, found, script)
            self.assertFalse(unread & found, script)


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
        path.write_text(SKIPPING.format(support=str(ROOT / "tests/support"), **{"whole": False, "passes": True, **values}))
        return path

    def test_python_programs_and_googletest_say_what_they_skipped_and_ctest_what_did_not_run(self):
        with tempfile.TemporaryDirectory() as folder:
            programs = {"whole": {"whole": True}, "part": {}, "broken": {"passes": False}}
            commands = {name: [sys.executable, str(self.run_program(folder, name, **values))] for name, values in programs.items()}
            commands["google"] = ["printf", "[ RUN      ] A.B\\n[  SKIPPED ] A.B (12 ms)\\n[  SKIPPED ] 1 test, listed below:\\n[  SKIPPED ] A.B\\n"]
            quoted = lambda words: " ".join(f'"{word}"' for word in words)
            build = pathlib.Path(folder)
            (build / "CTestTestfile.cmake").write_text("".join(
                f'add_test({name} {quoted(command)})\nset_tests_properties({name} PROPERTIES SKIP_RETURN_CODE {verdict.SKIPPED})\n' for name, command in commands.items()))
            said = subprocess.run(["ctest"], cwd=build, capture_output=True, text=True, check=False).stdout
            self.assertRegex(said, r"whole \.+\*\*\*Skipped")
            self.assertRegex(said, r"part \.+ +Passed")
            self.assertRegex(said, r"broken \.+\*\*\*Failed")
            found = run_tests.skipped_in((build / "Testing/Temporary/LastTest.log").read_text())
        subtest = "Part.test_cases (case='b'): no b"
        self.assertEqual(found, {"whole": ["Part: no GPU here", "Whole.test_one: no torch here"], "part": [subtest], "broken": [subtest], "google": ["A.B"]})
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            run_tests.say_skipped(found)
        self.assertIn("run_tests: skipped: whole: Part: no GPU here\n", shown.getvalue())
        with open(ROOT / "tests/run") as script:
            self.assertIn("run_tests: skipped: ", script.read())

    def test_every_python_program_ends_so(self):
        for path in ROOT.glob("tests/*/*_test.py"):
            text = path.read_text()
            self.assertNotIn("unittest.main(", text.partition("class Skipped")[0], path)
            self.assertRegex(text, r"(verdict|launcher|program|cluster)\.main\(\)", path)

    def test_ctest_knows_the_code_of_every_test(self):
        build = os.environ["NEARSTEP_BUILD"]
        for test in run_tests.listed(build):
            self.assertEqual(test["properties"].get("SKIP_RETURN_CODE"), verdict.SKIPPED, test["name"])


if __name__ == "__main__":
    verdict.main()
