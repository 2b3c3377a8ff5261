"""nearstep-tokenize: text as a file of tokens, which training reads (docs/formats/token-file.md)."""

from __future__ import annotations

import array
import contextlib
import hashlib
import pathlib
import struct
import sys

import nearstep_output
from nearstep_output import Mistake
from nearstep_output.options import Parser

from ._documents import WITH_COLUMNS, files_of, pieces_of
from ._read import HEADER_BYTES, MAGIC, read_tokens
from ._tokenizer import may_be_cut, open_tokenizer, texts_of

BATCH_BYTES = 32 << 20  # of text that is in memory at once


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
    if column is not None and not any(file.suffix.lower() in WITH_COLUMNS for file in files):
        raise Mistake(
            f"--column is {column}, and no file has columns: leave it out, or name files that end with "
            f"{', '.join(WITH_COLUMNS)}."
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
    return nearstep_output.code_of("nearstep-tokenize", lambda: _act(given))


def _act(given) -> None:
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
        raise Mistake(f"the package {error.name} is not installed: type pip install tokenizers numpy") from error
