"""launch/mpirun: a notice, a killed rank and a cut link reach the ranks of all hosts."""

import json
import signal

import cluster


class Faults(cluster.Cluster):
    def test_a_storage_host_that_loses_its_rank_ends_the_run_which_resumes(self):
        keys = {
            "hosts__names": '["nst1", "nst2"]',
            "hosts__storage": '["nst3", "nst4"]',
            "train__steps": 30,
            "csd__per_rank": 1,
        }
        whole = self.train("--fresh", ranks=6, **keys)
        metrics = self.folder / "metrics.jsonl"
        said = self.folder / "said"
        running = self.start(metrics, said, 6, "--fresh", **keys)
        cluster.wait_for_steps(metrics, 8, running.poll)
        cluster.kill_a_rank_on("nst3")
        self.assertNotEqual(running.wait(timeout=cluster.program.HANG_S), 0, said.read_text())
        done = self.mpirun("--resume", "--json", self.folder / "resumed.json", ranks=6, **keys)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        resumed = json.loads((self.folder / "resumed.json").read_text())
        self.assertGreaterEqual(resumed["first_step"], 8)  # a step's line is written before its commit
        self.assertEqual(resumed["masters_xxh3"], whole["masters_xxh3"])

    def test_a_notice_here_reaches_the_ranks_of_all_hosts(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(number):
                metrics = self.folder / f"{number}.jsonl"
                checkpoints = self.folder / f"checkpoints-{number}"
                keys = {
                    "train__steps": 20000,
                    "csd__per_rank": 1,
                    "csd__durability": '"checkpoint"',
                    "checkpoint__path": f'"{checkpoints}"',
                }
                said = self.folder / "said"
                running = self.start(metrics, said, 4, "--fresh", **keys)
                cluster.wait_for_steps(metrics, 3, running.poll)
                running.send_signal(number)
                self.assertEqual(running.wait(timeout=cluster.program.HANG_S), 75, said.read_text())
                self.assertEqual(len(list(checkpoints.glob("step-????????.h5"))), 1)

    def test_a_cut_link_ends_all_ranks_and_names_the_host(self):
        words = r"in a transfer for \d+ s \(seen on host nst1; no answer from host nst2\)"
        self.check_cut_link(words, ranks=8, csd__per_rank=1)


if __name__ == "__main__":
    cluster.main()
