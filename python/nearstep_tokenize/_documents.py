"""Finds files of text and yields their documents, piece by piece. Used by tokenize()."""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import os
import pathlib

from nearstep_output import Mistake

PIECE_BYTES = 1 << 18  # of text that a thread takes


def _raise(error: OSError):
    raise error


def _below(folder: pathlib.Path):
    """Yields the names below a folder, but for hidden ones. Links to folders are names here and are not followed."""
    for at, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if os.path.islink(os.path.join(at, name))]
        yield from (pathlib.Path(at, name) for name in (*names, *links) if not name.startswith("."))


def files_of(inputs) -> list:
    files = []
    for given in map(pathlib.Path, inputs):
        if not given.exists():
            state = "is a link that leads nowhere" if given.is_symlink() else "does not exist"
            raise Mistake(f"The text {given} {state}: name files or folders.")
        if given.is_char_device() or given.is_block_device():
            raise Mistake(f"The text {given} is a device: name files or folders.")
        for path in sorted(_below(given)) if given.is_dir() else [given]:
            if path != given and not path.is_file():
                state = (
                    "a link that leads nowhere"
                    if not path.exists()
                    else "a link to a folder"
                    if path.is_dir()
                    else "a pipe, a socket or a device"
                )
                raise Mistake(f"{path} is {state}, and no text: remove it, or name the files and folders beside it.")
            files.append(path)
    if not files:
        raise Mistake(f"No file was found in {', '.join(map(str, inputs))}: name files or folders with text.")
    return files


def _cut_of(text: str, begin: int) -> int:
    """The last place from ``begin`` on where a space stands between two letters; 0 if there is none."""
    place = len(text) - 1
    while (place := text.rfind(" ", begin, place)) > 0:
        if text[place - 1].isalpha() and text[place + 1].isalpha():
            return place
    return 0


def _texts_in(file):
    """Yields the text of a file in pieces, without its end-of-line marks changed."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    done = 0
    with file.open("rb") as stream:
        while read := stream.read(PIECE_BYTES):
            done += len(read)
            yield _decoded(file, decoder, read, done)
    yield _decoded(file, decoder, b"", done)


def _decoded(file, decoder, read, done):
    try:
        return decoder.decode(read, final=not read)
    except UnicodeDecodeError as error:
        place = done - len(error.object) + error.start
        raise Mistake(
            f"The file {file} is not UTF-8 ({error.reason} at byte {place}): convert it, or leave it out."
        ) from error


def _jsonl_texts(file, column: str):
    """Yields (text, bytes) of each line."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)[column]
            except RecursionError as error:
                raise Mistake(f"Line {number} of {file} is nested too deeply: mend the line.") from error
            except (ValueError, KeyError, TypeError) as error:
                raise Mistake(f'Line {number} of {file} is no object with a "{column}": mend the line.') from error
            if not isinstance(text, str):
                raise Mistake(f'Line {number} of {file} has a "{column}" that is no string: mend the line.')
            if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
                raise Mistake(f'Line {number} of {file} has half of a surrogate pair in its "{column}": mend the line.')
            yield text, len(line)


WITH_COLUMNS = (".jsonl", ".tsv", ".tab", ".csv")


def _table_texts(file, column: str | None):
    """Yields (text, bytes) of each row. ``column``: its name in the first line, or its number from 1 on if there are no
    names.
    """
    csv.field_size_limit(1 << 30)  # a document may be long
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            rows = (
                csv.reader(lines)
                if file.suffix.lower() == ".csv"
                else csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            )
            names = next(rows, [])
            if column is None:
                raise Mistake(
                    f"{file} is a table, whose labels and numbers are no text: name the column of the text with "
                    f"--column, one of {', '.join(names)}; a classifier needs no token file."
                )
            if column not in names and not (column.isdecimal() and 0 < int(column) <= len(names)):
                raise Mistake(f"The table {file} has no column {column}: name one of {', '.join(names)}.")
            place = names.index(column) if column in names else int(column) - 1
            for row in rows if column in names else itertools.chain([names], rows):
                if len(row) <= place:
                    raise Mistake(
                        f"Line {rows.line_num} of {file} has {len(row)} columns and not {len(names)}: mend the line."
                    )
                yield row[place], len("\t".join(row).encode()) + 1
    except (UnicodeDecodeError, csv.Error) as error:
        raise Mistake(f"The table {file} cannot be read ({error}): convert it to UTF-8, or leave it out.") from error


def pieces_of(file, cuts: bool, column: str | None = None):
    """Yields (text, bytes, whether a document ends there). Each line of a .jsonl has a document as its "text" or
    ``column``, each row of a table as its ``column``; any other file is one, in pieces if it may be cut."""
    if file.suffix.lower() in WITH_COLUMNS:
        for text, size in (
            _jsonl_texts(file, column or "text") if file.suffix.lower() == ".jsonl" else _table_texts(file, column)
        ):
            yield text, size, True
        return
    rest = ""
    for text in _texts_in(file):
        looked_at = max(0, len(rest) - 1)
        rest += text
        cut = _cut_of(rest, looked_at) if cuts else 0
        if cut > 0:
            yield rest[:cut], len(rest[:cut].encode()), False
            rest = rest[cut:]
    yield rest, len(rest.encode()), True
