"""Options of the programs. Used by nearstep_run, nearstep_report and nearstep_tokenize. Standard library only."""

from __future__ import annotations

import argparse
import difflib
import re
import sys


class Parser(argparse.ArgumentParser):
    """Says which option was meant. Subclasses end the program in fail(), with a sentence."""

    def fail(self, sentence: str):
        self.exit(2, f"{self.prog}: {sentence}\n")

    def parse_known_args(self, args=None, namespace=None):
        self._words = sys.argv[1:] if args is None else list(map(str, args))
        return super().parse_known_args(args, namespace)

    def error(self, message: str):
        unknown = re.search(r"unrecognized arguments: (?:[^-]\S* )*(--[^\s=]+)", message)
        if message.startswith("the following arguments are required"):  # perhaps for want of the right name
            names = [word.partition("=")[0] for word in self._words]
            others = [
                name
                for name in names
                if name.startswith("--") and not any(one.startswith(name) for one in self._option_string_actions)
            ]
            unknown = re.match("(.*)", others[0]) if others else None
        known = [name for name, action in self._option_string_actions.items() if action.help != argparse.SUPPRESS]
        near = difflib.get_close_matches(unknown[1], known, n=1) if unknown else []
        self.fail(
            f"there is no option {unknown[1]}: did you mean {near[0]}?"
            if near
            else f"{message}: {self.prog} --help lists the options"
        )
