"""The form that every result has on the page. Used by _runs.py and _studies.py."""

from dataclasses import dataclass, field

from ._values import words


@dataclass
class Study:
    title: str
    path: str = ""
    about: list = field(default_factory=list)  # (name, value)
    figures: list = field(default_factory=list)  # (name, value) in large type
    findings: list = field(default_factory=list)  # (origin, sentence)
    charts: list = field(default_factory=list)
    columns: list = field(default_factory=list)  # (key, heading, format)
    rows: list = field(default_factory=list)
    notes: list = field(default_factory=list)


def facts(content, *names):
    """(name, value) of the keys that have a value."""
    return [(name, words(content.get(name))) for name in names if words(content.get(name))]
