"""nearstep-tokenize: text as a file of tokens, which training reads (docs/formats/token-file.md)."""

from __future__ import annotations

import array
import codecs
import contextlib
import csv
import hashlib
import itertools
import json
import os
import pathlib
import re
import struct
import sys

import nearstep_output
from nearstep_output.options import Parser

from ._read import HEADER_BYTES, MAGIC, read_tokens

BATCH_BYTES = 32 << 20  # of text that is in memory at once
PIECE_BYTES = 1 << 18  # of text that a thread takes
MOST_TOKENS = 1 << 24  # in a vocabulary


class Mistake(Exception):
    """A mistake that the user can mend, as one sentence."""


# --- The tokenizer ---


def open_tokenizer(path: pathlib.Path):
    """A ``tokenizers.Tokenizer`` and the digest of its files. ``path`` is a ``tokenizer.json``, or a folder with one,
    with GPT-2's ``encoder.json`` and ``vocab.bpe`` (or ``vocab.json`` and ``merges.txt``), or with BERT's
    ``vocab.txt``."""
    import tokenizers

    def bert(vocabulary, settings=None):
        lowers = settings is None or json.loads(pathlib.Path(settings).read_bytes()).get("do_lower_case", True)
        return tokenizers.BertWordPieceTokenizer(vocabulary, lowercase=lowers)._tokenizer

    def byte_pairs(vocabulary, merges):
        return tokenizers.ByteLevelBPETokenizer(vocabulary, merges)._tokenizer

    kinds = (
        (("tokenizer.json",), tokenizers.Tokenizer.from_file),
        (("encoder.json", "vocab.bpe"), byte_pairs),
        (("vocab.json", "merges.txt"), byte_pairs),
        (("vocab.txt", "tokenizer_config.json"), bert),
        (("vocab.txt",), bert),
    )
    if path.is_file():
        files, make = [path], tokenizers.Tokenizer.from_file
    else:
        for names, make in kinds:
            files = [path / name for name in names]
            if all(file.is_file() for file in files):
                break
        else:
            raise Mistake(
                f"There is no tokenizer in {path}: name a tokenizer.json, or a folder with one, with vocab.json and "
                "merges.txt, or with vocab.txt."
            )
    try:
        tokenizer = make(*map(str, files))
    except Exception as error:  # the library raises Exception itself
        raise Mistake(
            f"The tokenizer {' and '.join(map(str, files))} cannot be read ({' '.join(str(error).split())}): check "
            "the file."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(file.read_bytes())
    return tokenizer, int.from_bytes(digest.digest(), "little")


def _bytes_of_characters() -> dict:
    """GPT-2's characters for the 256 bytes."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {**{chr(byte): byte for byte in seen}, **{chr(256 + i): byte for i, byte in enumerate(hidden)}}


def texts_of(tokenizer) -> list:
    """The bytes that each token of the vocabulary stands for, as far as its name tells; empty where no token has the
    number.
    """
    described = json.loads(tokenizer.to_str())
    decoder = json.dumps(described.get("decoder") or {})
    special = {token["id"] for token in described.get("added_tokens", [])}
    bytes_of = _bytes_of_characters()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if max(vocabulary.values()) >= MOST_TOKENS:
        raise Mistake(
            f"The tokenizer has a token of number {max(vocabulary.values())}, and {MOST_TOKENS} is the most: check "
            "its file."
        )
    texts = [b""] * (max(vocabulary.values()) + 1)
    for name, number in vocabulary.items():
        if number in special:
            texts[number] = name.encode()
        elif '"ByteLevel"' in decoder:
            texts[number] = bytes(bytes_of[c] for c in name) if all(c in bytes_of for c in name) else name.encode()
        elif '"WordPiece"' in decoder:
            texts[number] = name[2:].encode() if name.startswith("##") else b" " + name.encode()
        elif re.fullmatch(r"<0x[0-9A-F]{2}>", name):
            texts[number] = bytes([int(name[3:5], 16)])
        else:
            texts[number] = name.replace("\u2581", " ").encode()
    return texts


def may_be_cut(tokenizer) -> bool:
    """Whether a text may be cut before a space that stands between two letters, without a change of its tokens. The
    tokenizer itself is asked: its words of "a b" must be those of "a" and those of " b"."""
    described = json.loads(tokenizer.to_str())
    if not described.get("pre_tokenizer") or any(
        " " in token["content"] or token.get("rstrip") for token in described.get("added_tokens", [])
    ):
        return False
    parts = described["pre_tokenizer"].get("pretokenizers", [described["pre_tokenizer"]])
    if not {part.get("type") for part in parts} <= {
        "ByteLevel",
        "BertPreTokenizer",
        "Whitespace",
        "WhitespaceSplit",
        "Split",
    }:
        return False

    def words_of(text):
        normalized = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        return [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalized)]

    return all(
        words_of(left + " " + right) == words_of(left) + words_of(" " + right)
        for left, right in (("a", "b"), ("No", "Yes"), ("\u00e9t\u00e9", "\u4e00"))
    )


# --- Documents ---


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


_WITH_COLUMNS = (".jsonl", ".tsv", ".tab", ".csv")


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
    if file.suffix.lower() in _WITH_COLUMNS:
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


# --- The file ---


class TokenWriter:
    """Writes a token file, which appears when it is whole."""

    def __init__(self, path: pathlib.Path, texts: list, tokenizer_digest: int):
        import numpy

        self.path, self.texts, self.tokenizer_digest = path, texts, tokenizer_digest
        self.dtype = numpy.dtype("<u2" if len(texts) <= 1 << 16 else "<u4")
        self.numpy = numpy
        self.count, self.ends, self.digest = 0, array.array("Q"), hashlib.blake2b(digest_size=8)
        self.output = nearstep_output.open_output(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = self.output.__enter__()
        except OSError as error:
            raise Mistake(
                f"The token file {path} cannot be written ({error.strerror}): name a file in a folder that you may "
                "write to."
            ) from error
        self.file.write(b"\0" * HEADER_BYTES)

    def add(self, tokens) -> None:
        stored = self.numpy.asarray(tokens, dtype=self.dtype).tobytes()
        self.digest.update(stored)
        self.file.write(stored)
        self.count += len(tokens)

    def end_document(self) -> None:
        self.ends.append(self.count)

    def finish(self) -> None:
        self.file.write(b"\0" * (-self.count * self.dtype.itemsize % 8))
        self.file.write(self.numpy.asarray(self.ends, dtype="<u8").tobytes())
        lengths = self.numpy.fromiter(map(len, self.texts), dtype="<u8", count=len(self.texts))
        self.file.write(self.numpy.cumsum(lengths).astype("<u8").tobytes())
        joined = b"".join(self.texts)
        self.file.write(joined)
        tokens_digest = int.from_bytes(self.digest.digest(), "little")
        self.file.seek(0)
        self.file.write(
            MAGIC
            + struct.pack(
                "<8Q",
                1,
                self.dtype.itemsize,
                self.count,
                len(self.ends),
                len(self.texts),
                len(joined),
                self.tokenizer_digest,
                tokens_digest,
            )
        )
        self.output.__exit__(None, None, None)

    def drop(self, error: BaseException) -> None:
        with contextlib.suppress(type(error)):
            self.output.__exit__(type(error), error, error.__traceback__)


def _files_of_tokenizer(path) -> list:
    names = (
        "tokenizer.json",
        "encoder.json",
        "vocab.bpe",
        "vocab.json",
        "merges.txt",
        "vocab.txt",
        "tokenizer_config.json",
    )
    return [path] if path.is_file() else [path / name for name in names]


def _expect_apart(out, inputs) -> None:
    if nearstep_output.would_replace(out, inputs):
        raise Mistake(
            f"The token file {out} is also a text, or belongs to the tokenizer or to a run, and would be lost: name "
            "another file to write, outside of folders of texts."
        )


def tokenize(out, tokenizer_path, inputs, end=None, show=None, column=None) -> int:
    """Writes the token file ``out`` of the texts ``inputs``, files or folders, and returns how many tokens it has.
    ``end``: a token of the tokenizer that is put behind each document. ``show``: called with the number of bytes done.
    ``column``: see pieces_of(). Memory does not grow with the text. The tokens are the same on any number of threads,
    which RAYON_NUM_THREADS sets."""
    out = pathlib.Path(out)
    if out.is_dir():
        raise Mistake(f"The token file {out} is a folder: name a file to write, as in train.tokens.")
    tokenizer, digest = open_tokenizer(pathlib.Path(tokenizer_path))
    files = files_of(inputs)
    _expect_apart(out, [*files, *_files_of_tokenizer(pathlib.Path(tokenizer_path))])
    end_number = None if end is None else tokenizer.token_to_id(end)
    if end is not None and end_number is None:
        raise Mistake(f"The tokenizer has no token {end!r}: name one of its vocabulary with --end.")
    if column is not None and not any(file.suffix.lower() in _WITH_COLUMNS for file in files):
        raise Mistake(
            f"--column is {column}, and no file has columns: leave it out, or name files that end with "
            f"{', '.join(_WITH_COLUMNS)}."
        )
    cuts = may_be_cut(tokenizer)
    writer = TokenWriter(out, texts_of(tokenizer), digest)
    try:
        batch, size = [], 0

        def encode():
            nonlocal batch, size
            for encoded, (_, is_end) in zip(
                tokenizer.encode_batch([text for text, _ in batch], add_special_tokens=False), batch
            ):
                writer.add(encoded.ids)
                if is_end:
                    if end_number is not None:
                        writer.add([end_number])
                    writer.end_document()
            if show:
                show(size)
            batch, size = [], 0

        for file in files:
            for text, length, is_end in pieces_of(file, cuts, column):
                batch.append((text, is_end))
                size += length
                if size >= BATCH_BYTES:
                    encode()
        encode()
        if writer.count == 0:
            raise Mistake(f"The texts {', '.join(map(str, inputs))} have no tokens: name files with text.")
    except BaseException as error:
        writer.drop(error)
        raise
    writer.finish()
    return writer.count


def main(arguments=None) -> int:
    parser = Parser(
        prog="nearstep-tokenize",
        description="Writes text as a file of tokens, which nearstep train takes as data.train.",
    )
    parser.add_argument("out", help="the token file to write")
    parser.add_argument(
        "inputs",
        nargs="+",
        help='text files, each a document; .jsonl files, each line with a "text" a document; tables (.tsv, .tab, '
        ".csv), each row one; or folders of them",
    )
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json, or the folder of a tokenizer")
    parser.add_argument("--end", metavar="TOKEN", help="a token to put behind each document, such as '<|endoftext|>'")
    parser.add_argument(
        "--column",
        metavar="NAME",
        help='the key or column that has the text, in .jsonl files ("text" if not given) and tables; a number, from '
        "1, in tables without names",
    )
    given = parser.parse_args(arguments)
    try:
        from tqdm import tqdm
    except ImportError:
        tqdm = None
    try:
        total = sum(file.stat().st_size for file in files_of(given.inputs))
        if tqdm is None:
            count = tokenize(given.out, given.tokenizer, given.inputs, given.end, column=given.column)
        else:
            with tqdm(total=total, unit="B", unit_scale=True, disable=not sys.stderr.isatty()) as bar:
                count = tokenize(given.out, given.tokenizer, given.inputs, given.end, bar.update, given.column)
        nearstep_output.say(f"{given.out}: {count} tokens of {total} bytes")
    except ImportError as error:
        print(
            f"nearstep-tokenize: the package {error.name} is not installed: type pip install tokenizers numpy",
            file=sys.stderr,
        )
        return 2
    except Mistake as error:
        print(f"nearstep-tokenize: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        sentence, code = nearstep_output.describe(error)
        print(f"nearstep-tokenize: {sentence}", file=sys.stderr)
        return code
    return 0
