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

    def run_cards(self, *flags, **keys):
        return program.run(2, *self.arguments(flags=flags, **self.on_cards(**keys)))

    def test_each_mode_has_the_bits_of_the_emulated_device(self):
        """fpga/card_device_test.cpp has every codec, format and delivery, and fpga.first_run a run with each format."""
        for keys in (
            # More subgroups than slots.
            {"config": "configs/quickstart.toml", "train__global_batch": 4, "train__evaluate_batches": 2},
            {"mode": "su", "csd__state": "q8", "model__dtype": "fp16", "train__optimizer": "adam"},
            {"mode": "base"},
        ):
            with self.subTest(**keys):
                keys = {"train__steps": 4, "flags": ["--fresh"], **keys}
                # So few slots keep no state.
                cards, emulated = self.train(**self.on_cards(**keys)), self.train_emulated(csd__slots=4, **keys)
                self.assert_same_bits(cards, emulated)
                self.assertEqual(cards["bytes_per_parameter"], emulated["bytes_per_parameter"])

    def test_a_run_that_loses_a_card_says_so_and_goes_on_on_hosts_and_on_cards(self):
        whole = self.train_emulated(train__steps=6)
        # Card 2 belongs to rank 1. Rank 0 has other cards.
        with unittest.mock.patch.dict(os.environ, {"NEARSTEP_CARD_FAULTS": "lost_completion=2:14"}):
            done = self.run_cards(train__steps=6, exchange__timeout_s=20)
        self.assertNotIn(done.returncode, (0, 2, 124))
        self.assert_states(done.stderr, "0000:e0:02.1", "time-out", "rank 1")
        # The host's engine is used in place of that card. Then all devices are emulated.
        parts = [
            self.train(flags=["--resume"], **self.on_cards(train__steps=6, train__stop_at=3, csd__host_engine=[2])),
            self.train_emulated(flags=["--resume"], state="cards", train__steps=6, train__stop_at=4),
            self.train(flags=["--resume"], **self.on_cards(train__steps=6)),
        ]
        self.assertIn(parts[0]["first_step"], (2, 3))
        self.assertEqual(
            [loss for part in parts for loss in part["losses"]], whole["losses"][parts[0]["first_step"] - 1 :]
        )
        self.assertEqual(parts[-1]["masters_xxh3"], whole["masters_xxh3"])

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

    def test_the_launcher_gives_a_command_cards_and_the_doctor_warns_of_a_hot_one(self):
        launcher, path = program.ROOT / "launch/emulated-cards", self.folder / "doctor.json"
        doctor = [launcher, 3, "--", program.PROGRAM, "doctor", "--json", path]
        done = program.call(*doctor, NEARSTEP_CARD_FAULTS="temperature=1:93")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = program.json.loads(path.read_text())["nodes"][0]["findings"]
        self.assertEqual(found["xrt"]["cards"], 3)
        cards = [found[f"card_{i}"] for i in range(3)]
        self.assertEqual([card["address"] for card in cards], [f"0000:e0:0{i}.1" for i in range(3)])
        self.assertEqual([card["is_hot"] for card in cards], [False, True, False])
        self.assertEqual({(card["ddr_gib"], card["has_peer_to_peer"]) for card in cards}, {(4.0, True)})
        self.assert_states(done.stdout, "3 cards", "HOT")
        for words in (["0", "--", "true"], ["2", "true"], ["65", "--", "true"]):
            self.assertEqual(program.call(launcher, *words).returncode, 2)


if __name__ == "__main__":
    program.main()
