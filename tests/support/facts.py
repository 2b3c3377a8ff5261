"""Tests what a message states, in whichever words and order. Standard library only."""

import re


def _is_stated(fact, said):
    before, after = (r"(?<!\w)" if fact[0].isalnum() else ""), (r"(?!\w)" if fact[-1].isalnum() else "")
    return re.search(before + re.escape(fact) + after, said) is not None


class States:
    """Adds assert_states() to a unittest.TestCase."""

    def assert_states(self, said, *facts):
        """Facts are keys, arguments, paths, names and numbers: a whole word each, or several."""
        self.assertEqual([fact for fact in map(str, facts) if not _is_stated(fact, said)], [], f"not stated by: {said}")
