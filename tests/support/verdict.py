"""Says what a test program in Python may read of the checkout, and how it ends. Standard library only.

Each skipped test has a line like GoogleTest's, which tests/run_tests lists: "[  SKIPPED ] NAME: REASON". If nothing
ran, the exit code is 77, for which ctest says "Skipped".

NEARSTEP_READS has the files and folders that a test declares, with ":" between them: "." for all, "*" for all but C++
and Markdown. tests/run_tests leaves out a test only if they are as they were, so a read of any other file fails here.
"""

import os
import pathlib
import re
import sys
import unittest

SKIPPED = 77
ROOT = str(pathlib.Path(__file__).resolve().parents[2])
READS = os.environ.get("NEARSTEP_READS")
SOURCES = (".cpp", ".hpp", ".cu", ".cuh", ".md")


def is_declared(name, reads):
    """Whether a test whose NEARSTEP_READS is `reads` may read the file, named from the root of the checkout."""
    for entry in reads.split(":"):
        if entry == "." or (entry == "*" and not name.endswith(SOURCES)) or f"{name}/".startswith(f"{entry}/"):
            return True
    return False


def _refuse_undeclared(event, arguments):
    """An audit hook of Python: for files that this process opens or names to one that it starts."""
    if event == "open":
        folder, words = "", arguments[:1]
    elif event == "subprocess.Popen":
        folder, words = arguments[2] or "", arguments[1] if isinstance(arguments[1], (list, tuple)) else ()
    else:
        return
    for word in words:
        if isinstance(word, int):
            continue
        path = os.path.abspath(os.path.join(os.fsdecode(folder), os.fsdecode(word)))
        name = path.removeprefix(ROOT + "/")
        is_ours = path.startswith(ROOT + "/") and not name.startswith(("build/", "."))
        if is_ours and os.path.isfile(path) and not is_declared(name, READS):
            raise PermissionError(
                f"{name} is read, but not declared: add it to READS of the test in its CMakeLists.txt."
            )


if READS is not None:
    sys.addaudithook(_refuse_undeclared)


def say_skipped(name, reason):
    print(f"[  SKIPPED ] {name}: {' '.join(str(reason).split()) or 'without a reason'}", flush=True)


def end_skipped(reason):
    """Ends a program that this machine cannot run."""
    say_skipped(pathlib.Path(sys.argv[0]).stem, reason)
    sys.exit(SKIPPED)


def _name(test):
    """Class and function; of a class that was skipped whole, the class."""
    whole = re.match(r"setUp(?:Class|Module) \((?:__main__\.)?(\w+)\)", test.id())
    return whole[1] if whole else test.id().removeprefix("__main__.")


def main():
    """Runs the tests of the program's file, and ends it."""
    result = unittest.main(module="__main__", exit=False, verbosity=2).result
    for test, reason in result.skipped:
        say_skipped(_name(test), reason)
    whole = [
        test
        for test, _ in result.skipped
        if isinstance(test, unittest.TestCase) and not isinstance(test, unittest.case._SubTest)
    ]
    has_run = result.testsRun > len(whole)
    if not has_run and not result.skipped:
        print("There is no test here.", file=sys.stderr)
    sys.exit(1 if not result.wasSuccessful() or not (has_run or result.skipped) else 0 if has_run else SKIPPED)
