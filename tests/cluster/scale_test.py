"""Many ranks start, train and go on, on the cores of one machine."""

import time

import cluster

RANKS = 64


class Scale(cluster.program.Scenario):
    starts_anew = True

    def test_many_ranks_start_and_go_on(self):
        keys = {"train__global_batch": RANKS, "train__micro_batch": 1, "train__evaluate_batches": 1, "train__steps": 2}
        began = time.monotonic()
        whole = self.train(ranks=RANKS, **keys)
        print(f"\n{RANKS} ranks started and took 2 steps in {time.monotonic() - began:.0f} s", flush=True)
        self.assertEqual(len(list((self.folder / "state").glob("*.state"))), RANKS)
        first = self.train(ranks=RANKS, state="parts", train__stop_at=1, **keys)
        second = self.train(ranks=RANKS, state="parts", flags=["--resume"], **keys)
        self.assert_goes_on(whole, first, second)


if __name__ == "__main__":
    cluster.program.main()
