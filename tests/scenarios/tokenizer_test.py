"""Token files: nearstep-tokenize agrees with Hugging Face's tokenizers, and runs on any ranks train on its files."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import unittest

import program

try:
    import numpy
    import tokenizers

    import nearstep_tokenize
except ImportError as error:
    tokenizers = None
    ABSENT = str(error)

TOKENIZERS = program.SHARED_DATA / "tokenizers"


def visible_characters():
    """GPT-2's characters for the 256 bytes, in the order of their numbers in encoder.json."""
    return [chr(code) for code in range(ord("!"), 256 + 68) if code <= ord("~") or (code >= 0xA1 and code != 0xAD)]


def read(path):
    """Tokens, document ends and texts of a token file, read as docs/formats/token-file.md describes."""
    raw = path.read_bytes()
    assert raw[:16] == b"nearstep tokens\n"
    version, width, count, documents, vocabulary, text_bytes = struct.unpack("<6Q", raw[16:64])
    assert version == 1
    at = 4096
    tokens = numpy.frombuffer(raw, f"<u{width}", count, at)
    at += (count * width + 7) // 8 * 8
    ends = numpy.frombuffer(raw, "<u8", documents, at)
    at += 8 * documents
    text_ends = numpy.frombuffer(raw, "<u8", vocabulary, at)
    at += 8 * vocabulary
    assert len(raw) == at + text_bytes
    texts = [raw[at + (text_ends[i - 1] if i else 0) : at + text_ends[i]] for i in range(vocabulary)]
    return tokens, ends, texts


@unittest.skipUnless(tokenizers, "nearstep, tokenizers or numpy cannot be imported")
class Tokenizers(program.Scenario):
    def setUp(self):
        super().setUp()
        self.pairs = self.write_tokenizer("pairs", ["t h", "th e", "\u0120 the", "a n", "i n", "e r", "o f"])

    def write_tokenizer(self, name, merges):
        folder = self.folder / name
        folder.mkdir()
        tokens = visible_characters() + [merge.replace(" ", "") for merge in merges]
        (folder / "encoder.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
        (folder / "vocab.bpe").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
        return folder

    def tokenize(self, name, tokenizer, *texts, **options):
        out = self.folder / name
        nearstep_tokenize.tokenize(out, tokenizer, texts, **options)
        return out

    def keys(self, tokens, **keys):
        return {"data__train": f'"{tokens}"', "model__vocabulary": 263, **keys}

    def test_the_loss_per_byte_is_that_per_token_over_the_bytes_of_a_token(self):
        bytes_run = self.train(train__steps=2)
        self.assertEqual(bytes_run["heldout_nats_per_byte"], bytes_run["heldout_loss"])
        pairs = self.train(**self.keys(self.tokenize("tokens", self.pairs, self.text), train__steps=2))
        self.assertLess(pairs["heldout_nats_per_byte"], pairs["heldout_loss"])
        bytes_per_token = pairs["heldout_loss"] / pairs["heldout_nats_per_byte"]
        # The text repeats one phrase, so the whole text has nearly the statistics of a part.
        text = self.text.read_text()
        merged = (
            text.count("the") + text.count(" the") + text.count("th") + sum(map(text.count, ("an", "in", "er", "of")))
        )
        self.assertAlmostEqual(bytes_per_token, len(text) / (len(text) - merged), delta=0.05)
        self.assertAlmostEqual(pairs["heldout_bits_per_byte"], pairs["heldout_nats_per_byte"] / 0.6931471805599453)

    def test_python_maps_the_tokens(self):
        out = self.tokenize("tokens", self.pairs, self.text)
        self.assertTrue(numpy.array_equal(nearstep_tokenize.read_tokens(out), read(out)[0]))
        (self.folder / "cut").write_bytes(out.read_bytes()[:5000])
        os.mkfifo(self.folder / "pipe")
        for path in (self.text, self.folder / "cut", self.folder / "pipe"):
            with self.assertRaisesRegex(ValueError, str(path)):
                nearstep_tokenize.read_tokens(path)

    def test_resuming_needs_the_same_tokenizer(self):
        tokens = self.tokenize("tokens", self.pairs, self.text)
        others = self.tokenize(
            "others",
            self.write_tokenizer("other", ["t h", "th e", "\u0120 the", "i n", "a n", "e r", "o f"]),
            self.text,
        )
        whole = self.train(state="whole", **self.keys(tokens, train__steps=6))
        for durability in ("step", "checkpoint"):
            with self.subTest(durability=durability):
                keys = {"train__steps": 6, "csd__durability": durability}
                first = self.train(state=durability, train__stop_at=3, **self.keys(tokens, **keys))
                for other in (others, self.text):
                    refused = program.run_in_turn(
                        2, *self.arguments(state=durability, flags=["--resume"], **self.keys(other, **keys))
                    )
                    self.assert_refusal(refused, "tokenizer=file")
                second = self.train(state=durability, flags=["--resume"], **self.keys(tokens, **keys))
                self.assertEqual(first["losses"] + second["losses"], whole["losses"])
                shown = program.run(0, "inspect", second["checkpoint"])
                self.assertIn("tokenizer=file", shown.stdout)

    def test_samples_are_text(self):
        keys = self.keys(self.tokenize("tokens", self.pairs, self.text), train__steps=2)
        done = program.run_in_turn(2, *self.arguments(flags=["--sample", 40, "--prompt", "the \u00e9"], **keys))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sample:\nthe \u00e9", done.stdout)

    def test_documents_end_where_they_do(self):
        for name, content in (("b.txt", "\ufeffof the"), ("a.jsonl", '{"text": "the"}\n\n{"text": "an of"}\n')):
            (self.folder / "texts").mkdir(exist_ok=True)
            (self.folder / "texts" / name).write_text(content)
        tokens, ends, texts = read(self.tokenize("tokens", self.pairs, self.folder / "texts", end="!"))
        documents = [b"".join(texts[token] for token in part) for part in numpy.split(tokens, ends[:-1])]
        self.assertEqual(documents, [b"the!", b"an of!", b"of the!"])

    def test_a_text_in_a_table_may_be_long(self):
        table = self.folder / "long.csv"
        table.write_text("text,label\n" + "of the " * 30000 + ",1\n")
        self.assertGreater(len(read(self.tokenize("tokens", self.pairs, table, column="text"))[0]), 30000)

    def test_a_column_of_a_table_has_the_texts(self):
        for name, column, content in (
            ("a.tsv", "text", 'label\ttext\n1\tof "the\n0\tan\n'),
            ("a.csv", "text", 'label,text\n1,"of ""the"\n0,an\n'),
            ("a.TAB", "2", '1\tof "the\n0\tan\n'),
            ("a.jsonl", "said", '{"said": "of \\"the", "text": 3}\n{"said": "an"}\n'),
        ):
            with self.subTest(name=name, column=column):
                table = self.folder / name
                table.write_text(content)
                tokens, ends, texts = read(self.tokenize("tokens", self.pairs, table, end="!", column=column))
                self.assertEqual(
                    [b"".join(texts[token] for token in part) for part in numpy.split(tokens, ends[:-1])],
                    [b'of "the!', b"an!"],
                )

    def test_mistakes_are_one_sentence_and_leave_nothing(self):
        table, short = self.folder / "table.tsv", self.folder / "short.csv"
        table.write_text("sentence\tlabel\nof the\t1\n")
        short.write_text("label,sentence\n1,of\n0\n")
        empty, latin, broken, half, deep = (
            self.folder / name for name in ("empty", "latin", "broken.jsonl", "half.jsonl", "deep.jsonl")
        )
        deep.write_text('{"text": "a"}\n{"text":' + 100_000 * "[" + 100_000 * "]" + "}\n")
        empty.write_text("")
        latin.write_bytes(b"of the \xc3\xa4 " * 50000 + b"\xe9t\xe9 ")
        broken.write_text('{"text": "a"}\n{"tex": 1}\n')
        half.write_text('{"text": "a \\ud83d\\ude00"}\n{"text": "\\ud83d"}\n')
        lost, linked = self.folder / "lost", self.folder / "linked"
        for folder, target in ((lost, "gone"), (linked, self.pairs)):
            folder.mkdir()
            (folder / "text").write_text("of the")
            (folder / "link").symlink_to(target)
        copy, own = self.folder / "copy", self.folder / "own"
        copy.write_bytes(self.text.read_bytes())
        shutil.copytree(self.pairs, own)
        high = self.folder / "high"
        shutil.copytree(self.pairs, high)
        (high / "encoder.json").write_text(
            json.dumps({**json.loads((high / "encoder.json").read_text()), "far": 4294967295})
        )
        before = sorted(self.folder.iterdir())
        for arguments, words in (
            (["out", "/nowhere/text", "--tokenizer", self.pairs], "/nowhere/text"),
            (["out", lost, "--tokenizer", self.pairs], f"{lost / 'link'} is a link that leads nowhere"),
            (["out", lost / "link", "--tokenizer", self.pairs], "is a link that leads nowhere"),
            (["out", linked, "--tokenizer", self.pairs], f"{linked / 'link'} is a link to a folder"),
            (["out", self.text, "--tokenizer", "/nowhere"], "/nowhere"),
            (["out", self.text, "--tokenizer", self.text], self.text),
            (["out", self.text, "--tokenizer", self.pairs, "--end", "nothing"], "'nothing'"),
            (["out", empty, "--tokenizer", self.pairs], empty),
            (["out", latin, "--tokenizer", self.pairs], "byte 500000"),
            (["out", half, "--tokenizer", self.pairs], f"Line 2 of {half}"),
            (["out", deep, "--tokenizer", self.pairs], f"Line 2 of {deep}"),
            (["/proc/out", self.text, "--tokenizer", self.pairs], "/proc/out"),
            ([self.folder, self.text, "--tokenizer", self.pairs], self.folder),
            (["out", table, "--tokenizer", self.pairs], "sentence, label"),
            (["out", table, "--tokenizer", self.pairs, "--column", "text"], "sentence, label"),
            (["out", short, "--tokenizer", self.pairs, "--column", "sentence"], "Line 3"),
            (["out", self.text, "--tokenizer", self.pairs, "--column", "sentence"], "--column"),
            (["out", short, "--tokenizer", self.pairs, "--column", "\u00b2"], "\u00b2"),
            (["out", self.text, "--tokenizer", high], "4294967295"),
            (["--tokeniser", self.pairs], "--tokenizer?"),
            ([copy, copy, "--tokenizer", self.pairs], copy),
            ([own / "vocab.bpe", self.text, "--tokenizer", own], own / "vocab.bpe"),
            (["out", "/dev/zero", "--tokenizer", self.pairs], "/dev/zero"),
            (["/dev/full", self.text, "--tokenizer", self.pairs], "/dev/full"),
            (["out", broken, "--tokenizer", self.pairs], "Line 2"),
        ):
            with self.subTest(words):
                done = subprocess.run(
                    [pathlib.Path(sys.executable).parent / "nearstep-tokenize", *arguments],
                    cwd=self.folder,
                    capture_output=True,
                    text=True,
                )
                self.assertEqual(done.returncode, 2, done.stderr)
                (line,) = done.stderr.splitlines()
                self.assert_states(line, words)
                self.assertEqual(sorted(self.folder.iterdir()), before)

    def test_texts_are_cut_where_the_tokenizer_allows_it(self):
        from tokenizers import models, normalizers, pre_tokenizers

        for pre_tokenizer, normalizer, expected in (
            (None, None, False),
            (pre_tokenizers.ByteLevel(add_prefix_space=False), None, True),
            (pre_tokenizers.ByteLevel(add_prefix_space=True), None, True),
            (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), None, False),
            (pre_tokenizers.BertPreTokenizer(), None, True),
            (pre_tokenizers.Whitespace(), normalizers.Lowercase(), True),
            (pre_tokenizers.Split(tokenizers.Regex(r"[.!?]\s"), "isolated"), None, False),
            (pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Strip(), False),
            (pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.Prepend("_"), False),
        ):
            made = tokenizers.Tokenizer(models.BPE())
            if pre_tokenizer:
                made.pre_tokenizer = pre_tokenizer
            if normalizer:
                made.normalizer = normalizer
            with self.subTest(str(pre_tokenizer), normalizer=str(normalizer)):
                self.assertEqual(nearstep_tokenize.may_be_cut(made), expected)
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        made.add_special_tokens(["two words"])
        self.assertFalse(nearstep_tokenize.may_be_cut(made))

    @unittest.skipUnless(TOKENIZERS.is_dir(), "the tokenizers and texts of ../shared/data are not there")
    def test_published_tokenizers_on_real_text(self):
        nearstep_tokenize._documents.PIECE_BYTES = 1 << 14  # many cuts
        texts = {
            name: program.SHARED_DATA / name
            for name in ("shakespeare/input.txt", "gutenberg/valid.txt", "gutenberg/train.txt")
        }
        cases = [
            ("gpt2", "shakespeare/input.txt", 338025),
            ("bert-uncased", "shakespeare/input.txt", None),
            ("gpt2", "gutenberg/valid.txt", 221975),
            ("gpt2", "gutenberg/train.txt", 7460541),
        ]
        for name, text, count in program.sweep(cases, 0, 1, 2):
            with self.subTest(name, text=text):
                tokens, _, words = read(self.tokenize("tokens", TOKENIZERS / name, texts[text]))
                whole = texts[text].read_text(encoding="utf-8")
                if count is not None:
                    self.assertEqual(len(tokens), count)
                    self.assertEqual(b"".join(words[token] for token in tokens.tolist()), whole.encode())
                tokenizer, _ = nearstep_tokenize.open_tokenizer(TOKENIZERS / name)
                self.assertEqual(tokens.tolist(), tokenizer.encode(whole, add_special_tokens=False).ids)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    program.main()
