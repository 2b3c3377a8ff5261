"""What a run resumes from after bit rot, without its checkpoints, and with other folders. tests/campaigns/restart_campaign kills runs in each phase."""
import json

import program


class Crash(program.Scenario):
    starts_anew = True

    def assert_killed(self, done):
        # mpirun reports the signal of a rank as 128 + 9.
        self.assertIn(done.returncode, (-9, 137), f"{done.args}\n{done.stdout}\n{done.stderr}")

    def small_run(self, ranks=2, state="state", flags=(), **keys):
        return self.arguments(state=state, flags=flags, train__steps=8, **keys)

    def finish(self, **options):
        """Resumes the run to its end; returns its output and summary."""
        summary = self.folder / "summary.json"
        done = program.succeed(2, *self.small_run(flags=["--resume", "--json", summary], **options))
        return done.stdout, json.loads(summary.read_text())

    def whole_masters(self):
        return self.train(state="whole", train__steps=8)["masters_xxh3"]

    def flip(self, place):
        """Flips a bit at that place in every subgroup of rank 1, which has 4 subgroups of one tile."""
        extent = 4096 + 12 * 65536
        with open(self.folder / "state/rank-1.device-0.state", "rb+") as state:
            for subgroup in range(4):
                state.seek((2 * subgroup + place) * extent + 5000)
                byte = state.read(1)[0]
                state.seek(-1, 1)
                state.write(bytes([byte ^ 16]))

    def test_bit_rot_falls_back_to_a_checkpoint_as_new_and_else_to_the_generation_before(self):
        masters = self.whole_masters()
        for places in ([1], [0, 1]):
            self.train(train__steps=8, train__stop_at=5, flags=["--fresh"])
            for place in places:
                self.flip(place)
            said, summary = self.finish()
            self.assertIn("rank-1.device-0.state", said)
            self.assertIn("step-00000005.h5", said)
            self.assertEqual(summary["first_step"], 6)
            self.assertEqual(summary["masters_xxh3"], masters)
        for is_there in (False, True):
            self.train(train__steps=8, train__stop_at=5, flags=["--fresh"])
            checkpoints = self.folder / "state/checkpoints"
            if is_there:
                part = next(checkpoints.glob("step-00000005.*.rank-00001.h5"))
                data = bytearray(part.read_bytes())
                data[len(data) // 2] ^= 16
                part.write_bytes(data)
            else:
                program.shutil.rmtree(checkpoints)
            self.flip(place=1)
            said, summary = self.finish()
            self.assertEqual(summary["first_step"], 5)
            self.assertEqual("rank-00001.h5" in said, is_there)
            self.assertEqual(summary["masters_xxh3"], masters)

    def test_state_alone_is_enough_to_go_on_and_is_not_overwritten_unasked(self):
        masters = self.whole_masters()
        self.train(train__steps=8, train__stop_at=5)
        program.shutil.rmtree(self.folder / "state/checkpoints")
        self.assert_refusal(program.run(2, *self.small_run()), "step 5 of 8", "--resume")
        _, summary = self.finish()
        self.assertEqual(summary["first_step"], 6)
        self.assertEqual(summary["masters_xxh3"], masters)
        self.assertTrue((self.folder / "state/checkpoints/step-00000008.h5").exists())

    def test_a_newer_step_in_a_folder_that_is_no_longer_named_is_not_ignored(self):
        masters = self.whole_masters()
        keys = {"checkpoint__every": 3, "checkpoint__path": f'"{self.folder / "checkpoints"}"'}
        self.assert_killed(program.run(2, *self.small_run(**keys), fault="rank=0 phase=before_commit count=7"))
        moved = dict(keys, csd__path=f'"{self.folder / "other"}"')
        refused = program.run(2, *self.small_run(flags=["--resume"], **moved))
        self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertRegex(refused.stderr, r"\bStep 5 .*/state .*csd.path .*--from .*step-00000003.h5")
        _, summary = self.finish(**keys)
        self.assertEqual(summary["first_step"], 6)
        self.assertEqual(summary["masters_xxh3"], masters)


if __name__ == "__main__":
    program.main()
