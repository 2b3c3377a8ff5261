"""Weight decay of matrices only: two parameter groups, on any ranks and devices."""

import program

MATRICES = {"train__decay": "matrices", "train__weight_decay": 0.5, "train__steps": 8, "csd__subgroup_tiles": 1}


class Decay(program.Scenario):
    def test_one_and_two_ranks_train_the_same_model(self):
        one, two, again = (self.train(ranks=ranks, model__dtype="fp32", **MATRICES) for ranks in (1, 2, 2))
        self.assert_close(two["losses"], one["losses"], 1e-4)
        self.assert_same_bits(again, two)

    def test_devices_and_modes_change_nothing(self):
        keys = {**MATRICES, "csd__state": "compact"}
        one = self.train(**keys)
        for other in ({"csd__per_rank": 3}, {"mode": "su", "csd__subgroup_tiles": 4}):
            self.assert_same_bits(self.train(**{**keys, **other}), one)

    def test_it_differs_from_decay_of_all_and_resumes_with_its_bits(self):
        matrices, everything, none = (
            self.train(state=f"state-{number}", **{**MATRICES, **keys})
            for number, keys in enumerate(({}, {"train__decay": "all"}, {"train__weight_decay": 0}))
        )
        self.assertEqual(len({one["masters_xxh3"] for one in (matrices, everything, none)}), 3)
        self.train(state="parts", train__stop_at=3, **MATRICES)
        rest = self.train(state="parts", flags=["--resume"], **MATRICES)
        self.assertEqual(rest["masters_xxh3"], matrices["masters_xxh3"])


if __name__ == "__main__":
    program.main()
