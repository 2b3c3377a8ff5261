"""nearstep plan on the modelled site: what it prints is labelled, and its numbers agree with each other."""
import json
import unittest

import program

SITE = ("--site", "cluster/csd-pod")


class Plan(program.Scenario):
    def plan(self, *arguments, config="configs/gpt-7b.toml"):
        """(text, rows) of a plan that must succeed."""
        out = self.folder / "plan.json"
        done = program.run(0, "plan", config, *SITE, *arguments, "--json", out, timeout=60)
        self.assertEqual(done.returncode, 0, f"{arguments}\n{done.stdout}\n{done.stderr}")
        return done.stdout, json.loads(out.read_text())

    def test_everything_is_labelled(self):
        text, rows = self.plan("--nodes", "1,4")
        paragraphs = text.strip().split("\n\n")
        self.assertEqual(len(paragraphs), 3, "a summary, and one paragraph per plan")
        for paragraph in paragraphs:
            self.assertTrue(paragraph.startswith("modelled"), paragraph)
        for row in rows:
            self.assertEqual(row["origin"], "modelled")
        for term in rows[0]["terms_s"]:
            self.assertIn(f"{term} ", text)

    def test_terms_add_up_and_memories_hold(self):
        _, rows = self.plan("--nodes", "1,8,64", "--csds", "2,10")
        self.assertEqual([(row["nodes"], row["devices"]) for row in rows],
                         [(n, n * c) for n in (1, 8, 64) for c in (2, 10)])
        for row in rows:
            terms = row["terms_s"]
            phases = terms["T_fwd"] + terms["T_bwd"] + terms["T_norm"] + terms["T_opt"] - terms["T_overlap"]
            self.assertAlmostEqual(row["step_s"], phases, delta=1e-9 * phases)
            self.assertAlmostEqual(row["tokens_per_s"] * row["step_s"], 1024 * 2048, delta=1)
            for memory in row["memory_bytes"].values():
                self.assertLessEqual(memory["needed"], memory["available"])
            self.assertEqual(row["binds"], max(row["gain_if_twice_as_fast"], key=row["gain_if_twice_as_fast"].get))

    def test_devices_shorten_the_update_until_something_else_binds(self):
        _, rows = self.plan("--nodes", "1", "--csds", "2,4,8")
        updates = [row["terms_s"]["T_csd"] for row in rows]
        for fewer, more in zip(updates, updates[1:]):
            self.assertAlmostEqual(fewer / more, 2, delta=0.01)

    def test_scaling(self):
        text, rows = self.plan("--nodes", "1,256")
        self.assertIn("sequences leave some of 2048 GPUs without one", rows[1]["refused"])
        self.assertIn("no plan: ", text)
        _, rows = self.plan("--nodes", "1,256", "--scaling", "weak")
        self.assertEqual([row["sequences"] for row in rows], [1024, 256 * 1024])

    def test_what_does_not_fit_is_named(self):
        text, rows = self.plan("--set", "plan.device_capacity_gb=10")
        self.assertRegex(rows[0]["refused"], "needs 1[67] GB of drive, of which there are 10 GB")
        self.assertIn(rows[0]["refused"], text)


if __name__ == "__main__":
    program.main()
