"""The data of bench/fine_tuning: texts as WordPiece tokens and images, encoded once and kept as NumPy files.

gutenberg.npz, shakespeare.npz    train, valid: tokens, one after another
sst2.npz, qnli.npz                for train and dev: ids [rows, length], lengths, labels, and
                                  seconds (where the second text begins)
sst2-gpt2.npz, qnli-gpt2.npz      the same of GPT-2's tokenizer, without seconds: a line feed divides the texts
digits.npz                        for train and dev: images [rows, 8, 8] from 0 to 16, labels
"""

import pathlib

import numpy

CLS, SEP, MASK, PAD = 101, 102, 103, 0  # of the vocabulary of bert-uncased
GPT2_LINE_FEED, GPT2_PAD = 198, 50256
FIRST_WORD, VOCABULARY = 999, 30522
TEXTS = ("sentence", "question", "sentence1", "sentence2")  # in GLUE's files
LABELS = {"entailment": "0", "not_entailment": "1"}
LENGTHS = {"sst2": 64, "qnli": 128}
SMALL_TEXT, SMALL_ROWS = 60_000, 256  # with --smoke
NEEDED = (
    "gutenberg/train.txt",
    "gutenberg/valid.txt",
    "shakespeare/input.txt",
    "tokenizers/bert-uncased/vocab.txt",
    "tokenizers/gpt2/encoder.json",
    "tokenizers/gpt2/vocab.bpe",
    "glue/SST-2/train.tsv",
    "glue/SST-2/dev.tsv",
    "glue/QNLI/train.tsv",
    "glue/QNLI/dev.tsv",
)


def missing(data):
    """The needed files that `data` lacks."""
    return [name for name in NEEDED if not (pathlib.Path(data) / name).is_file()]


def encode_text(tokenizer, text):
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    found = tokenizer.encode_batch([paragraph for paragraph in paragraphs if paragraph], add_special_tokens=False)
    return numpy.concatenate([numpy.array(one.ids, numpy.uint16) for one in found])


def read_rows(path, most=None):
    """[label, text, second text or ""] of each row: of a file as GLUE has it, with a line of names first, or of rows
    `label<TAB>text<TAB>second text` without one. Texts may hold quotation marks."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").rstrip("\n").split("\n")]
    names = lines[0]
    if "label" not in names:
        return [(line + [""])[:3] for line in lines[:most]]
    if not (texts := [place for place, name in enumerate(names) if name in TEXTS]):
        raise ValueError(f"{path} has the columns {', '.join(names)}, of which none is a text: {', '.join(TEXTS)}.")
    rows = [[line[names.index("label")], *(line[place] for place in texts), ""][:3] for line in lines[1:]]
    return [[LABELS.get(label, label), *rest] for label, *rest in rows][:most]


def padded(texts, length, pad):
    """Texts of tokens as one array, and how long each is."""
    ids = numpy.full((len(texts), length), pad, numpy.uint16)
    for row, text in zip(ids, texts):
        row[: len(text)] = text
    return {"ids": ids, "lengths": numpy.array([len(text) for text in texts], numpy.uint8)}


def encode_rows(tokenizer, rows, length):
    """Encodes rows for BERT. A row that is too long loses the end of its longer text."""
    tokenizer.enable_truncation(length)
    encoded = tokenizer.encode_batch([(a, b) if b else a for _, a, b in rows])
    tokenizer.no_truncation()
    return padded([one.ids for one in encoded], length, PAD) | {
        "seconds": numpy.array([(one.type_ids + [1]).index(1) for one in encoded], numpy.uint8)
    }


def encode_lines(tokenizer, rows, length):
    """Encodes rows for GPT-2. A row that is too long loses its end."""
    first, second = ([one.ids for one in tokenizer.encode_batch([row[place] for row in rows])] for place in (1, 2))
    return padded([(a + ([GPT2_LINE_FEED, *b] if b else []))[:length] for a, b in zip(first, second)], length, GPT2_PAD)


def encode_digits():
    """The optical digits that scikit-learn contains: 1,437 for training, 360 held out."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = numpy.random.RandomState(0).permutation(len(digits.target))
    parts = {"train": order[:1437], "dev": order[1437:]}
    return {
        f"{part}_{name}": values[rows].astype(numpy.uint8)
        for part, rows in parts.items()
        for name, values in (("images", digits.images), ("labels", digits.target))
    }


def prepare(data, folder, is_small):
    """Encodes what is in `data` and writes it into `folder`. `is_small`: only the beginning of each file."""
    from nearstep_tokenize import open_tokenizer

    data, folder = pathlib.Path(data), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, _ = open_tokenizer(data / "tokenizers/bert-uncased")
    gpt2, _ = open_tokenizer(data / "tokenizers/gpt2")

    def text(name):
        whole = (data / name).read_text(encoding="utf-8")
        return encode_text(tokenizer, whole[:SMALL_TEXT] if is_small else whole)

    numpy.savez_compressed(
        folder / "gutenberg.npz", train=text("gutenberg/train.txt"), valid=text("gutenberg/valid.txt")
    )
    plays = text("shakespeare/input.txt")
    split = len(plays) * 9 // 10
    numpy.savez_compressed(folder / "shakespeare.npz", train=plays[:split], valid=plays[split:])
    for name, source in (("sst2", "SST-2"), ("qnli", "QNLI")):
        parts = {
            part: read_rows(data / "glue" / source / f"{part}.tsv", SMALL_ROWS if is_small else None)
            for part in ("train", "dev")
        }
        for file, encode, one in ((name, encode_rows, tokenizer), (f"{name}-gpt2", encode_lines, gpt2)):
            arrays = {
                part: encode(one, rows, LENGTHS[name])
                | {"labels": numpy.array([int(label) for label, _, _ in rows], numpy.int8)}
                for part, rows in parts.items()
            }
            numpy.savez_compressed(
                folder / f"{file}.npz",
                **{f"{part}_{key}": value for part, found in arrays.items() for key, value in found.items()},
            )
    try:
        numpy.savez_compressed(folder / "digits.npz", **encode_digits())
    except ImportError:
        return (
            "scikit-learn is not installed, so the rows of digits are left out: pip install scikit-learn, then "
            "--prepare again."
        )
    return ""


def load(folder, name):
    with numpy.load(pathlib.Path(folder) / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}
