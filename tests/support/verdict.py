"""How a test program in Python ends. Standard library only.

Each skipped test has a line like GoogleTest's, which tests/run_tests lists: "[  SKIPPED ] NAME: REASON". If nothing ran, the
exit code is 77, for which ctest says "Skipped".
"""
import pathlib
import re
import sys
import unittest

SKIPPED = 77


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
    whole = [test for test, _ in result.skipped if isinstance(test, unittest.TestCase) and not isinstance(test, unittest.case._SubTest)]
    has_run = result.testsRun > len(whole)
    if not has_run and not result.skipped:
        print("There is no test here.", file=sys.stderr)
    sys.exit(1 if not result.wasSuccessful() or not (has_run or result.skipped) else 0 if has_run else SKIPPED)
