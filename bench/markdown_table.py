"""Writes tables and paragraphs of Markdown. Used by bench/tables and by the measurements, which print their tables."""

import textwrap


def cell(value):
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def wrapped(paragraph):
    """The paragraph or item of a list within 120 columns, as on all pages; tables stay."""
    indent = "  " if paragraph.startswith("* ") else ""
    return (
        paragraph
        if paragraph.startswith("|")
        else textwrap.fill(paragraph, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    )


def table(head, rows):
    """Rows as the lines of a table in Markdown."""
    return "".join("| " + " | ".join(map(cell, cells)) + " |\n" for cells in (head, ["---"] * len(head), *rows))


def print_table(head, rows):
    """Prints rows as a table in Markdown."""
    print("\n" + table(head, rows), end="", flush=True)


def gigabytes(count):
    return None if count is None else count / 1e9


def percent(share):
    return None if share is None else f"{share * 100:.1f} %"
