"""Training with nearstep equals training with torch.optim: runs equality_worker.py on 1, 2 and 4 ranks."""
import json

import equality_cases
import launcher


def needed(name):
    return launcher.NEEDED + equality_cases.NEEDS.get(name, ())


class Equality(launcher.FolderTest):
    """One run per number of ranks, whose cases are the subtests."""

    def check(self, ranks):
        chosen = []
        for name in equality_cases.ON_RANKS[ranks]:
            absent = launcher.missing(*needed(name))
            if absent:
                print(f"skipped: {name} on {ranks} ranks: {absent}", flush=True)
            else:
                chosen.append(name)
        if not chosen:
            self.skipTest(launcher.missing(*launcher.NEEDED))
        worker = launcher.Process(ranks, "equality_worker.py", self.folder, *chosen)
        code = worker.wait()
        for rank in range(ranks):
            results = self.folder / f"results-{rank}.jsonl"
            lines = results.read_text().splitlines() if results.exists() else []
            found = {one["name"]: one["failure"] for one in map(json.loads, lines)}
            for name in chosen:
                with self.subTest(case=name, rank=rank):
                    self.assertIn(name, found, f"it did not end; the worker's output:\n{worker.text()[-4000:]}")
                    self.assertEqual(found[name], "", found[name])
        self.assertEqual(code, 0, worker.text()[-4000:])

    def test_on_1_rank(self):
        self.check(1)

    def test_on_2_ranks(self):
        self.check(2)

    def test_on_4_ranks(self):
        self.check(4)


if __name__ == "__main__":
    launcher.main()
