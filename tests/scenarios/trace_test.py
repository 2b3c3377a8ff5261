"""--trace writes a timeline of all ranks' lanes and changes nothing else."""
import collections
import json

import program


class Trace(program.Scenario):
    def test_the_timeline_has_every_lane_of_every_rank_and_step(self):
        file = self.folder / "trace.json"
        plain = self.train(train__steps=3, csd__per_rank=2, mode="su+o+c", compress__codec="topk")
        traced = self.train(train__steps=3, csd__per_rank=2, mode="su+o+c", compress__codec="topk",
                            state="traced", flags=["--trace", str(file)])
        self.assert_same_bits(plain, traced)
        events = json.loads(file.read_text())["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        lanes = collections.defaultdict(set)
        for span in spans:
            lanes[span["pid"]].add(span["cat"])
        everything = {"compute", "copy", "exchange", "device read", "engine", "device write"}
        self.assertEqual(dict(lanes), {0: everything, 1: everything})
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

    def test_a_file_that_cannot_be_written_ends_the_run_before_it_begins(self):
        done = program.run(1, *self.arguments(flags=["--trace", "/proc/nowhere/trace.json"]))
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("/proc/nowhere", done.stderr)


if __name__ == "__main__":
    program.main()
