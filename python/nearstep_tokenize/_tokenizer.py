"""Reads a tokenizer of the package tokenizers and asks what its tokens stand for. Used by tokenize()."""

from __future__ import annotations

import hashlib
import json
import pathlib
import re

from nearstep_output import Mistake

MOST_TOKENS = 1 << 24  # in a vocabulary


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
