"""Runs on byte pairs: any number of ranks, resumed with the same tokenizer only, exported, sampled."""
import json

import program


def visible_characters():
    """GPT-2's characters for the 256 bytes, in the order of their numbers in encoder.json."""
    return [chr(code) for code in range(ord("!"), 256 + 68) if code <= ord("~") or (code >= 0xA1 and code != 0xAD)]


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

    def keys(self, **keys):
        return {"data__tokenizer": f'"{self.pairs}"', "model__vocabulary": 263, **keys}

    def test_any_number_of_ranks_sees_the_same_tokens(self):
        keys = self.keys(model__dtype="fp32", train__steps=5)
        one = self.train(ranks=1, **keys)
        for ranks in (2, 3):
            summary = self.train(ranks=ranks, **keys)
            self.assert_close(summary["losses"], one["losses"], 1e-4)
            self.assertAlmostEqual(summary["heldout_nats_per_byte"], one["heldout_nats_per_byte"], delta=1e-4)

    def test_the_loss_per_byte_is_that_per_token_over_the_bytes_of_a_token(self):
        bytes_run = self.train(train__steps=2)
        self.assertEqual(bytes_run["heldout_nats_per_byte"], bytes_run["heldout_loss"])
        pairs = self.train(**self.keys(train__steps=2))
        self.assertLess(pairs["heldout_nats_per_byte"], pairs["heldout_loss"])
        bytes_per_token = pairs["heldout_loss"] / pairs["heldout_nats_per_byte"]
        # The text is one phrase over and over, so that the whole of it nearly tells what a part has.
        text = self.text.read_text()
        merged = text.count("the") + text.count(" the") + text.count("th") + sum(map(text.count, ("an", "in", "er", "of")))
        self.assertAlmostEqual(bytes_per_token, len(text) / (len(text) - merged), delta=0.05)
        self.assertAlmostEqual(pairs["heldout_bits_per_byte"], pairs["heldout_nats_per_byte"] / 0.6931471805599453)

    def test_resuming_needs_the_same_tokenizer(self):
        whole = self.train(state="whole", **self.keys(train__steps=6))
        for durability in ("step", "checkpoint"):
            with self.subTest(durability=durability):
                keys = self.keys(train__steps=6, csd__durability=durability)
                first = self.train(state=durability, train__stop_at=3, **keys)
                others = self.folder / f"other-{durability}"
                self.write_tokenizer(others.name, ["t h", "th e", "\u0120 the", "i n", "a n", "e r", "o f"])
                for tokenizer in (others, "bytes"):
                    refused = program.run(2, *self.arguments(
                        state=durability, flags=["--resume"], **{**keys, "data__tokenizer": f'"{tokenizer}"'}))
                    self.assertEqual(refused.returncode, 2, refused.stdout + refused.stderr)
                    self.assertIn("another model", refused.stderr)
                    self.assertIn("tokenizer=gpt2", refused.stderr)
                second = self.train(state=durability, flags=["--resume"], **keys)
                self.assertEqual(first["losses"] + second["losses"], whole["losses"])
                shown = program.run(0, "inspect", second["checkpoint"])
                self.assertIn("tokenizer=gpt2", shown.stdout)

    def test_a_vocabulary_that_is_too_small_is_refused(self):
        done = program.run(2, *self.arguments(**self.keys(model__vocabulary=256)))
        self.assertEqual(done.returncode, 2)
        self.assertIn("set model.vocabulary to 263", done.stderr)
        self.assertFalse((self.folder / "state").exists())

    def test_samples_are_text(self):
        done = program.run(2, *self.arguments(flags=["--sample", 40, "--prompt", "the \u00e9"], **self.keys(train__steps=2)))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("sample:\nthe \u00e9", done.stdout)


if __name__ == "__main__":
    program.main()
