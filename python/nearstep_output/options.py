"""Options of the programs. Standard library only."""

from __future__ import annotations

import argparse
import difflib
import re


class Parser(argparse.ArgumentParser):
    """Says which option was meant. Subclasses end the program in fail(), with a sentence."""

    def fail(self, sentence: str):
        self.exit(2, f"{self.prog}: {sentence}\n")

    def error(self, message: str):
        unknown = re.search(r"unrecognized arguments: (?:[^-]\S* )*(--[^\s=]+)", message)
        known = [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]
        near = difflib.get_close_matches(unknown[1], known, n=1) if unknown else []
        self.fail(f"there is no option {unknown[1]}: did you mean {near[0]}?" if near else f"{message}: {self.prog} --help lists the options")
