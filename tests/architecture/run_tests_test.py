"""What tests/run_tests takes for the files that a script reads. Standard library only."""
import ast
import importlib.machinery
import importlib.util
import pathlib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


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
                                     ("scenarios/restart_campaign_test.py", {"bench/restart_campaign", "bench/restart_round.py", "scenarios/program.py"},
                                      {"bench/same_bits", "scenarios/crash_test.py"}),
                                     ("scenarios/gpu_bench_test.py", {"bench/gpu_codec", "bench/gpu_runs.py"}, {"python/equality_test.py"}),
                                     ("scenarios/embedding_test.py", {"embedding/vision_transformer.cpp"}, {"bench/gpu_codec"})):
            found = {path.removeprefix("tests/") for path in run_tests.files_named(f"tests/{script}", scripts)}
            self.assertIn(script, found)
            self.assertLessEqual(read, found, script)
            self.assertFalse(unread & found, script)


if __name__ == "__main__":
    unittest.main()
