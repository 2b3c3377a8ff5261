"""--trace writes a timeline of all ranks' lanes."""

import collections
import json

import program


class Trace(program.Scenario):
    def test_the_timeline_has_every_lane_of_every_rank_and_step(self):
        file = self.folder / "trace.json"
        traced = self.train(
            train__steps=3,
            csd__per_rank=2,
            mode="su+o+c",
            compress__codec="topk",
            state="traced",
            flags=["--trace", str(file)],
        )
        lanes = dict(traced["lanes"])
        together = lanes.pop("together")
        self.assertAlmostEqual(together, sum(lanes.values()))
        self.assertGreater(together, 0)
        events = json.loads(file.read_text())["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        seen = collections.defaultdict(set)
        for span in spans:
            seen[span["pid"]].add(span["cat"])
        everything = {"compute", "copy", "exchange", "device read", "engine", "device write"}
        self.assertEqual(dict(seen), {0: everything, 1: everything})
        self.assertEqual(set(lanes), everything)
        self.assertEqual({span["args"]["step"] for span in spans}, {1, 2, 3})
        forward = [s for s in spans if s["name"] == "forward" and s["pid"] == 0 and s["args"]["step"] == 2]
        backward = [s for s in spans if s["name"] == "backward" and s["pid"] == 0 and s["args"]["step"] == 2]
        blocks = [s["args"]["block"] for s in forward]
        self.assertEqual(blocks, sorted(blocks))
        self.assertEqual([s["args"]["block"] for s in backward], blocks[::-1])

    def test_rows_do_not_overlap(self):
        file = self.folder / "trace.json"
        self.train(ranks=1, train__steps=3, flags=["--trace", str(file)])
        rows = collections.defaultdict(list)
        for event in json.loads(file.read_text())["traceEvents"]:
            if event["ph"] == "X":
                rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        for row in rows.values():
            row.sort()
            for (_, end), (begin, _) in zip(row, row[1:]):
                self.assertLessEqual(end, begin + 0.002)

    def spans(self, more=(), **options):
        """The spans of rank 0 in a run of one rank, whose drive takes 0.2 s to write a tile's state."""
        file = self.folder / "trace.json"
        self.train(
            ranks=1,
            train__steps=3,
            model__layers=1,
            csd__subgroup_tiles=1,
            link__device_write_gb_s=0.004,
            flags=["--trace", str(file), *more],
            **options,
        )
        return [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]

    @staticmethod
    def of(spans, name, step, block=None):
        """(first begin, last end) of the spans with that name, step and block."""
        found = [
            (s["ts"], s["ts"] + s["dur"])
            for s in spans
            if s["name"] == name and s["args"]["step"] == step and block in (None, s["args"].get("block"))
        ]
        return min(begin for begin, _ in found), max(end for _, end in found)

    def test_forward_begins_before_the_last_write_of_the_step_before_but_not_in_su(self):
        for mode in ("su+o", "su+o+c", "su"):
            with self.subTest(mode=mode):
                if mode == "su":
                    self.assertFalse(self.begins_before_the_last_write(mode))
                else:
                    self.assert_seen(lambda: self.begins_before_the_last_write(mode))

    def begins_before_the_last_write(self, mode):
        spans = self.spans(mode=mode, state=mode, more=["--fresh"])
        are_before = []
        for step in (2, 3):
            begin, _ = self.of(spans, "forward", step, block=0)
            first_updated = min(
                s["ts"] + s["dur"] for s in spans if s["name"] == "update" and s["args"]["step"] == step - 1
            )
            _, written = self.of(spans, "write", step - 1)
            self.assertGreaterEqual(begin, first_updated - 0.002)
            # A step's gradients always wait for the previous step's writes.
            self.assertGreater(self.of(spans, "backward", step)[0], written)
            are_before.append(begin < written)
        return any(are_before)

    def test_the_update_begins_before_the_norm_is_known_unless_steps_are_clipped(self):
        for clip_norm in (1e6, 1e-3):
            with self.subTest(clip_norm=clip_norm):
                if clip_norm > 1:
                    self.assert_seen(lambda: self.updates_before_the_norm(clip_norm))
                else:
                    self.assertFalse(self.updates_before_the_norm(clip_norm))

    def updates_before_the_norm(self, clip_norm):
        spans = self.spans(
            mode="su+o", more=["--fresh"], state="clipped", train__clip_norm=clip_norm, link__host_gb_s=0.0005
        )
        last = max(s["args"]["block"] for s in spans if s["name"] == "gradient")
        are_before = []
        for step in (2, 3):
            begin, _ = self.of(spans, "update", step)
            first_came, _ = self.of(spans, "gradient", step, block=last)
            _, known = self.of(spans, "norm", step)
            self.assertGreater(begin, first_came)
            are_before.append(begin < known)
        return any(are_before)

    def test_a_file_that_cannot_be_written_ends_the_run_before_it_begins(self):
        self.assert_refusal(
            program.run(1, *self.arguments(flags=["--trace", "/proc/nowhere/trace.json"])), "/proc/nowhere"
        )


if __name__ == "__main__":
    program.main()
