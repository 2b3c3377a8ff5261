"""A few cuts of tests/campaigns/power_cuts. Only tests/run --long starts them."""

import program


class PowerCuts(program.Scenario):
    def test_no_cut_loses_a_step(self):
        done = program.call(program.ROOT / "tests/campaigns/power_cuts", "--cuts", "21")  # one of each form
        if done.returncode == 77:
            self.skipTest(done.stdout.strip().rpartition(": ")[2])
        print(done.stdout, flush=True)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    program.main()
