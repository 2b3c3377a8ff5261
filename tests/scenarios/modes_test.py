"""All modes give the same bits, and move the bytes that the design states."""

import program


class Modes(program.Scenario):
    def test_base_su_and_overlapped_modes_are_bit_identical(self):
        for dtype in ("bf16", "fp32"):
            runs = {
                mode: self.train(
                    mode=mode, model__dtype=dtype, compress__codec="dense", train__steps=8, csd__per_rank=2
                )
                for mode in ("base", "su", "su+o", "su+o+c")
            }
            for mode, summary in runs.items():
                with self.subTest(dtype=dtype, mode=mode):
                    self.assert_same_bits(summary, runs["base"])

    def test_threads_that_share_the_tiles_give_the_same_bits(self):
        runs = [
            self.train(mode=mode, ranks=1, threads=3, train__steps=3, csd__per_rank=devices, csd__subgroup_tiles=2)
            for mode, devices in (("base", 1), ("base", 3), ("su+o", 4))
        ]
        for summary in runs[1:]:
            self.assert_same_bits(summary, runs[0])

    def bytes_of(self, **keys):
        # So few slots keep no state.
        summary = self.train(train__steps=4, csd__per_rank=2, csd__slots=4, **keys)
        return summary["bytes_per_parameter"], program.padding_of(summary)

    def test_base_moves_24_bytes_of_state_and_8_of_gradients_over_the_host_link(self):
        links, padding = self.bytes_of(mode="base")
        self.assert_bytes(links["host_link"]["state_read"], 12, padding)
        self.assert_bytes(links["host_link"]["state_write"], 12, padding)
        self.assert_bytes(links["host_link"]["gradients_read"], 4, padding)
        self.assert_bytes(links["host_link"]["gradients_write"], 4, padding)
        self.assertEqual(links["device_internal"], {"read": 0, "write": 0})

    def test_su_moves_gradients_and_parameters_only(self):
        for mode in ("su", "su+o"):
            for dtype, size in (("bf16", 2), ("fp32", 4)):
                with self.subTest(mode=mode, dtype=dtype):
                    links, padding = self.bytes_of(mode=mode, model__dtype=dtype)
                    self.assertEqual(links["host_link"]["state_read"], 0)
                    self.assertEqual(links["host_link"]["state_write"], 0)
                    self.assertEqual(links["host_link"]["gradients_read"], 0)
                    self.assert_bytes(links["host_link"]["gradients"], size, padding)
                    self.assert_bytes(links["host_link"]["parameters"], size, padding)
                    self.assert_bytes(links["device_internal"]["read"], 12, padding)
                    self.assert_bytes(links["device_internal"]["write"], 12, padding)

    def test_compare_reports_every_mode_and_leaves_no_state_behind(self):
        summary = self.folder / "compare.json"
        arguments = self.arguments()[1:]
        done = program.succeed(
            2, "compare", *arguments, "--steps", 2, "--devices", "1,2", "--traffic", "--json", summary
        )
        runs = program.json.loads(summary.read_text())
        self.assertEqual(
            [(r["mode"], r["devices"]) for r in runs],
            [(mode, devices) for devices in (2, 4) for mode in ("base", "su", "su+o", "su+o+c")],
        )
        self.assertEqual(len({r["losses"][0] for r in runs}), 1)
        self.assertIn("6M", done.stdout)
        self.assertFalse((self.folder / "state/compare").exists())


if __name__ == "__main__":
    program.main()
