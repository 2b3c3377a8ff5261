"""Interrupted runs of every kind: all ranks end in time, and the same command resumes to the bits of an undisturbed
run."""

import json
import os
import pathlib
import shutil
import signal
import tempfile
import time

import launcher

launcher.need()


class Durable(launcher.FolderTest):
    needs_drive = True

    def losses(self, folder, rank=0):
        """The loss of each step. Repeated steps must have equal losses."""
        out = {}
        for line in (folder / f"losses-{rank}.txt").read_text().splitlines():
            words = line.split()
            if len(words) < 2 or "p" not in words[1]:
                continue  # killed while it was written
            step, loss = int(words[0]), float.fromhex(words[1])
            self.assertEqual(out.setdefault(step, loss), loss, f"step {step} was repeated with another loss")
        return out

    def starts(self, folder):
        """(ranks, step) of each start of rank 0."""
        rows = [tuple(map(int, line.split())) for line in (folder / "starts.txt").read_text().splitlines()]
        return [(ranks, start) for rank, ranks, start in rows if rank == 0]

    def train(self, folder, ranks, steps, *arguments, fails=False):
        folder.mkdir(exist_ok=True)
        worker = launcher.Process(ranks, "durable_worker.py", folder, steps, *arguments)
        code = worker.wait()
        if fails:
            self.assertNotEqual(code, 0, worker.text())
            self.assertNotIn("did not take part", worker.text(), "no rank waits for one that has ended")
        else:
            self.assertEqual(code, 0, worker.text())
        return worker.text()

    def run_campaign(self, folder, kills, *arguments):
        """Kills runs in the folder, which then have the losses and masters of an undisturbed one: folder/whole."""
        worker = launcher.Process(1, "durable_worker.py", "--campaign", folder, kills, *arguments)
        self.assertEqual(worker.wait(), 0, worker.text())
        runs = json.loads((folder / "campaign.json").read_text())
        self.assertEqual(runs["killed"], kills)
        whole = folder / "whole"
        for name in runs["runs"]:
            with self.subTest(run=name):
                self.assertEqual(self.losses(folder / name), self.losses(whole))
                self.assertEqual((folder / name / "digest").read_text(), (whole / "digest").read_text())

    def test_killed_at_random_instants_on_1_rank_and_moved_to_2_ranks_and_back(self):
        """With logs; python.storage and the restart campaign kill runs whose state lies elsewhere, as --long does here:
        on a drive, and once in memory."""
        is_long = "NEARSTEP_LONG" in os.environ
        homes = [(self.folder / "logs", "--log")]
        if is_long:
            in_memory = pathlib.Path(tempfile.mkdtemp(prefix="nearstep-durable-", dir="/dev/shm"))
            self.addCleanup(shutil.rmtree, in_memory, ignore_errors=True)
            homes += [(self.folder / "drive",), (in_memory / "memory",)]
        self.train(self.folder / "longer", 1, 18)
        alone = self.losses(self.folder / "longer")
        for folder, *arguments in homes:
            folder.mkdir()
            self.run_campaign(folder, 50 if is_long else 6, *arguments)
            # Resumes on another number of ranks.
            whole = folder / "whole"
            self.train(whole, 2, 15, *arguments)
            if arguments:
                self.assertEqual(len(list((whole / "log").glob("rank-[01].device-0.set-1.state.log-*"))), 32)
                shutil.move(whole / "log", whole / "moved")
                said = self.train(whole, 1, 18, *arguments, fails=True)
                self.assert_states(said, "name that in log")
                shutil.move(whole / "moved", whole / "log")
            self.train(whole, 1, 18, *arguments)
            self.assertEqual(self.starts(whole), [(1, 0), (2, 12), (1, 15)])
            here, beside = self.losses(whole), self.losses(whole, rank=1)
            for step in range(18):
                loss = (here[step] + beside[step]) / 2 if step in beside else here[step]
                self.assertLess(abs(loss - alone[step]), 1e-5, f"step {step}")

    def test_a_rank_that_ends_its_program_ends_the_others_with_a_sentence(self):
        """Between two steps, before its first one, and while another one begins with a second optimizer."""
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.train(whole, 2, 8)
        for end, start in (("leave@1@5", 0), ("leave@0@5", 5)):
            said = self.train(parts, 2, 8, f"--end={end}", fails=True)
            self.assert_states(said, f"Rank {end[6]}")
            self.assertEqual(self.starts(parts)[-1][1], start, "the steps before are durable")
        self.train(parts, 2, 8)
        self.assertEqual((parts / "digest").read_text(), (whole / "digest").read_text())
        for work in ("second", "never"):
            with self.subTest(work):
                worker = launcher.Process(2, "ending_worker.py", self.folder / work, work)
                self.assertNotEqual(worker.wait(), 0, worker.text())
                self.assert_states(worker.text(), "Rank 1")

    def test_2_ranks_end_by_exception_exit_kill_and_ctrl_c_and_go_on(self):
        whole, parts = self.folder / "whole", self.folder / "parts"
        self.train(whole, 2, 12)
        said = self.train(parts, 2, 12, "--end=exception@1@3", fails=True)
        self.assertIn("raised on one rank", said)
        said = self.train(parts, 2, 12, "--end=exit@0@5", fails=True)
        self.assertRegex(said, r"(?m)^nearstep: .* step")
        self.train(parts, 2, 12, "--end=kill@1@7", fails=True)
        worker = launcher.Process(2, "durable_worker.py", parts, 12, "--end=sleep@0@9")
        limit = time.monotonic() + launcher.WORKERS_LIMIT_S
        while not (parts / "sleeps").exists() and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(0.5)  # now rank 1 waits for rank 0
        worker.signal(signal.SIGINT)
        self.assertNotEqual(worker.wait(), 0)
        self.train(parts, 2, 12, "--end=evaluate@1@-1")
        self.assertTrue((parts / "evaluated").exists())
        starts = [start for _, start in self.starts(parts)]
        for start, at in zip(starts, (0, 3, 5, 7, 9)):  # the last step may be unfinished, the previous one uncommitted
            self.assertTrue(max(0, at - 2) <= start <= at, f"{starts}: a step that was done is lost")
        for rank in range(2):
            self.assertEqual(self.losses(parts, rank), self.losses(whole, rank))
        self.assertEqual((parts / "digest").read_text(), (whole / "digest").read_text())


if __name__ == "__main__":
    launcher.start_forks("torch")
    launcher.main()
