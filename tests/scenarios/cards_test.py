"""Training on emulated cards through XRT: the bits of emulated devices, and errors that name the card on every rank."""

import os
import unittest
import unittest.mock

import program

CARDS = program.PROGRAM.parent / "emulated-card"


@unittest.skipUnless(
    (CARDS / "nearstep.xclbin").exists(),
    "There are no emulated cards in this build: they want Debian's XRT 2.13 on amd64 (launch/setup).",
)
class Cards(program.Scenario):
    starts_anew = True  # a card writes its log when the process ends

    def setUp(self):
        super().setUp()
        environment = {"XILINX_XRT": str(CARDS), "XRT_INI_PATH": str(CARDS / "xrt.ini"), "NEARSTEP_EMULATED_CARDS": "4"}
        for name, value in environment.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)

    def on_cards(self, state="cards", **keys):
        """The keys of two ranks with two cards each."""
        folders = ", ".join(f'"{self.folder / state}-{i}"' for i in range(4))
        return {
            "csd__device": '"xrt"',
            "csd__per_rank": 2,
            "csd__path": f"[{folders}]",
            "csd__cards": '["0", "1", "2", "3"]',
            "csd__xclbin": f'"{CARDS}/nearstep.xclbin"',
            **keys,
        }

    def train_emulated(self, **options):
        """Trains as on_cards() says, but on devices of hosts, whose processes need not end."""
        with unittest.mock.patch.object(self, "starts_anew", False):
            return self.train(**self.on_cards(**{"csd__device": '"emulated"', "state": "emulated", **options}))

    def with_faults(self, faults):
        os.environ["NEARSTEP_CARD_FAULTS"] = faults
        self.addCleanup(os.environ.pop, "NEARSTEP_CARD_FAULTS", None)

    def run_cards(self, *flags, **keys):
        return program.run(2, *self.arguments(flags=flags, **self.on_cards(**keys)))

    def test_the_quickstart_has_the_bits_of_the_emulated_device(self):
        keys = {"train__steps": 6, "train__global_batch": 4, "train__evaluate_batches": 2}
        cards = self.train(config="configs/quickstart.toml", **self.on_cards(**keys))
        # So few slots keep no state.
        emulated = self.train_emulated(config="configs/quickstart.toml", csd__slots=4, **keys)
        self.assert_same_bits(cards, emulated)
        self.assertEqual(cards["bytes_per_parameter"], emulated["bytes_per_parameter"])

    def test_every_mode_codec_and_format_has_the_same_bits(self):
        for keys in (
            {"mode": "su"},
            {"mode": "base"},
            {"mode": "su+o+c", "compress__codec": "topk"},
            {"mode": "su+o+c", "compress__codec": "q4", "csd__state": "compact", "gather__codec": "delta"},
            {"csd__state": "q8", "model__dtype": "fp16", "train__optimizer": "adam"},
        ):
            with self.subTest(**keys):
                keys = {"train__steps": 4, **keys}
                self.assert_same_bits(
                    self.train(flags=["--fresh"], **self.on_cards(**keys)),
                    self.train_emulated(flags=["--fresh"], **keys),
                )

    def test_a_run_moves_from_cards_to_the_host_and_back(self):
        whole = self.train_emulated(train__steps=6)
        self.train(**self.on_cards(train__steps=6, train__stop_at=2))
        # One card is too hot, so its device uses the host's engine. Then all devices are emulated.
        self.train(flags=["--resume"], **self.on_cards(train__steps=6, train__stop_at=3, csd__host_engine=[3]))
        self.train(flags=["--resume"], **self.on_cards(train__steps=6, train__stop_at=4, csd__device='"emulated"'))
        moved = self.train(flags=["--resume"], **self.on_cards(train__steps=6))
        self.assertEqual(moved["masters_xxh3"], whole["masters_xxh3"])
        self.assertEqual(moved["losses"][-1], whole["losses"][-1])

    def test_a_lost_completion_ends_all_ranks_with_a_sentence(self):
        # Card 2 belongs to rank 1. Rank 0 has other cards.
        self.with_faults("lost_completion=2:6")
        done = self.run_cards(train__steps=4, exchange__timeout_s=20)
        self.assertNotIn(done.returncode, (0, 2, 124))
        self.assertIn("0000:e0:02.1", done.stderr)
        self.assertIn("time-out", done.stderr)
        self.assertIn("rank 1", done.stderr)

    def test_a_run_that_was_lost_goes_on_where_it_was(self):
        whole = self.train_emulated(train__steps=4)
        self.with_faults("lost_completion=1:20")
        self.assertNotEqual(self.run_cards(train__steps=4, exchange__timeout_s=20).returncode, 0)
        self.with_faults("")
        resumed = self.train(flags=["--resume"], **self.on_cards(train__steps=4))
        self.assertEqual(resumed["masters_xxh3"], whole["masters_xxh3"])

    def assert_refused(self, *words, **keys):
        self.assert_refusal(self.run_cards(train__steps=1, **keys), *words)

    def test_xrt_is_loaded_for_cards_alone(self):
        broken = self.folder / "libraries/libxrt_coreutil.so.2"
        broken.parent.mkdir()
        broken.write_text("no library")
        # The loader reads the variable when a process starts, so these are no forks.
        found = {"LD_LIBRARY_PATH": f"{broken.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
        with (
            unittest.mock.patch.dict(os.environ, found),
            unittest.mock.patch.object(program, "PROGRAM_FORKED", program.PROGRAM),
        ):
            self.assert_refused("XRT cannot be loaded", broken.name, 'csd.device = "emulated"')
            self.assertIn("no XRT, no cards", program.succeed(0, "doctor").stdout)
            self.train_emulated(train__steps=1)

    def test_the_doctor_lists_the_cards_and_warns_of_a_hot_one(self):
        self.with_faults("temperature=1:93")
        path = self.folder / "doctor.json"
        done = program.succeed(0, "doctor", "--json", path)
        found = program.json.loads(path.read_text())["nodes"][0]["findings"]
        self.assertEqual(found["xrt"]["cards"], 4)
        cards = [found[f"card_{i}"] for i in range(4)]
        self.assertEqual([card["address"] for card in cards], [f"0000:e0:0{i}.1" for i in range(4)])
        self.assertEqual([card["is_hot"] for card in cards], [False, True, False, False])
        self.assertEqual({(card["ddr_gib"], card["has_peer_to_peer"]) for card in cards}, {(4.0, True)})
        self.assertIn("HOT", done.stdout)

    def test_the_launcher_gives_a_command_cards(self):
        launcher = program.ROOT / "launch/emulated-cards"
        done = program.call(launcher, 3, "--", program.PROGRAM, "doctor")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("3 cards", done.stdout)
        for words in (["0", "--", "true"], ["2", "true"], ["65", "--", "true"]):
            self.assertEqual(program.call(launcher, *words).returncode, 2)


if __name__ == "__main__":
    program.main()
