"""The page: one HTML file that loads nothing. Used by _command.py."""

import datetime
import importlib.metadata
import pathlib

import jinja2
import markupsafe

from ._drawing import FILLED, LINES, MARKS
from ._values import ORIGINS, formatted, number, origin_of, words

LEGEND = {
    "measured": "on this hardware",
    "shaped": "on links limited to given rates",
    "modelled": "computed by formulas",
    "simulated": "by a network simulator",
    "published": "by others",
}
SHAPES = {
    "o": "<circle cx='18' cy='6' r='3.4'/>",
    "s": "<rect x='15' y='3' width='6' height='6'/>",
    "^": "<path d='M18 2l4 7h-8z'/>",
    "D": "<path d='M18 1.5l4.5 4.5-4.5 4.5-4.5-4.5z'/>",
}


def _sample(origin):
    """The line and the mark of an origin, for the legend."""
    line = LINES[origin]
    dashes = "" if line == "-" else " ".join(f"{1.8 * length:g}" for length in line[1])
    return markupsafe.Markup(
        f"<svg class='sample {'filled' if origin in FILLED else ''}' viewBox='0 0 36 12'><line x1='0' x2='36' y1='6' "
        f"y2='6' stroke-dasharray='{dashes}'/>{SHAPES[MARKS[origin]]}</svg>"
    )


def _cell(row, key, form):
    """(text, origin) of a table's cell. Whole numbers without a format are counts or settings, not results: they have
    no origin."""
    value = row.get(key)
    if value is None or value == "":
        return "–", ""
    if number(value) is None:
        return words(value), ""
    if isinstance(value, int) and not form:
        return str(value), ""
    return formatted(float(value), form), origin_of(key, row)


def _table(study):
    """The columns that have a value in some row, and their cells."""
    columns = [column for column in study.columns if any(row.get(column[0]) not in (None, "") for row in study.rows)]
    return columns, [[_cell(row, key, form) for key, _, form in columns] for row in study.rows]


def _version():
    try:
        return importlib.metadata.version("nearstep")
    except importlib.metadata.PackageNotFoundError:
        return ""


def make_page(subject, studies, ignored, refresh_s=0, status=""):
    """`refresh_s`: the browser loads the page again so often; 0: never."""
    here = pathlib.Path(__file__).parent
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    tables = [_table(study) for study in studies]
    used = {origin for _, table in tables for row in table for _, origin in row if origin} | {
        "measured",
        "shaped",
        "modelled",
        "simulated",
    }
    return environment.from_string((here / "page.html").read_text(encoding="utf-8")).render(
        subject=words(subject),
        style=markupsafe.Markup((here / "page.css").read_text(encoding="utf-8")),
        studies=studies,
        tables=tables,
        ignored=[words(name) for name in ignored],
        legend=[(origin, LEGEND[origin], _sample(origin)) for origin in ORIGINS if origin in used],
        refresh_s=refresh_s,
        status=status,
        version=_version(),
        written=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z"),
    )
