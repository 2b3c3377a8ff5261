"""Values of JSON files that anybody may have edited: a value of a wrong type counts as missing. Used by all of
nearstep_report."""

import math
import re

ORIGINS = ("measured", "shaped", "modelled", "simulated", "published")

# Matplotlib's axes overflow far beyond this.
MOST = 1e30

# Values that a shaped link does not change.
_UNSHAPED = re.compile("loss|bytes|volume|parameters|price")


def at(value, *path):
    """The value at a path of keys; None if there is none."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def number(value):
    """The value as a float if it is a number that can be shown, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if -MOST < value < MOST else None


def amount(value):
    """The value as a float; 0 if it is no number."""
    return number(value) or 0.0


def words(value):
    """The value as text, without characters that XML refuses; empty if there is none."""
    text = "" if value is None or isinstance(value, (dict, list)) else str(value)
    return re.sub("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def objects(value):
    """The objects of a list; none if it is no list."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def numbers(value):
    return [float(one) for one in value if number(one) is not None] if isinstance(value, list) else []


def formatted(value, form=""):
    """A number in one of Python's formats .Nf, .Ng and .Ne; others count as .4g."""
    if not math.isfinite(value):
        return "-"
    form = form if re.fullmatch(r"\.\d[fge]", form) else ".4g"
    return f"{value:.0f}" if form.endswith("g") and 1000 <= abs(value) < 1e8 else format(value, form)


def origin_of(key, row):
    """Returns where the value of `key` in a row comes from. A row without an origin comes from a run."""
    for origin in ("modelled", "simulated"):
        if key.startswith(origin + "_"):
            return origin
    origin = row.get("origin")
    if origin not in ORIGINS or (origin == "shaped" and _UNSHAPED.search(key)):
        return "measured"
    return origin


def human_bytes(value):
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.3g} {unit}"
        value /= 1000
