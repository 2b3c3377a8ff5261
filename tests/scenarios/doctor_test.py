"""nearstep doctor agrees with what can be observed otherwise, and leaves no files behind."""
import json
import os
import shutil

import program


class Doctor(program.Scenario):
    def report(self, ranks, *arguments):
        path = self.folder / "doctor.json"
        done = program.run(ranks, "doctor", *arguments, "--json", path, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(path.read_text()), done.stdout

    def test_findings_are_those_of_the_machine(self):
        state = self.folder / "state"
        report, shown = self.report(0, "--set", f"csd.path=[{self.folder}, {state}/below]")
        node, = report["nodes"]
        found = node["findings"]
        self.assertEqual(node["host"], os.uname().nodename)
        self.assertEqual(found["cpu"]["cpus"], os.cpu_count())
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "").split()
        self.assertLessEqual(set(found["cpu"]["features"]), set(flags))
        self.assertEqual("avx512" in found["engine"]["usable"],
                         {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= set(flags))
        self.assertEqual(found["engine"]["chosen"], found["engine"]["usable"][-1])
        self.assertLessEqual(found["huge_pages"]["given_bytes"], found["huge_pages"]["asked_bytes"])
        self.assertEqual([found[f"state_folder_{i}"]["is_there"] for i in (0, 1)], [True, False])
        free = shutil.disk_usage(self.folder).free
        self.assertAlmostEqual(found["state_folder_0"]["free_bytes"], free, delta=0.05 * free + 1e9)
        self.assertIn("csd.device", found["xrt"]["summary"])
        nccl = found["nccl_nvlink"]
        self.assertEqual(nccl["is_built"], nccl["version"] is not None)
        if not nccl["is_built"] or found["model"]["gpus"] < 2:
            self.assertEqual(nccl["path"], "mpi")
        for facts in found.values():
            self.assertIn(facts["summary"], shown)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["doctor.json", "text.txt"])

    def test_a_run_takes_the_paths_that_were_found(self):
        report, _ = self.report(2, "configs/tiny.toml", "--site", "cluster/localhost",
                                "--set", f"csd.path={self.folder}/state")
        node, = report["nodes"]
        self.assertEqual((report["ranks"], node["ranks"]), (2, [0, 1]))
        done = program.run(2, *self.arguments(train__steps=1))
        self.assertEqual(done.returncode, 0, done.stderr)
        head = done.stdout[:done.stdout.index("step 1")]
        found = node["findings"]
        self.assertIn("engine " + found["engine"]["chosen"], head)
        self.assertIn(found["model"]["path"], head)
        self.assertIn(found["mpi"]["library"], head)
        self.assertIn(found["state_io"]["chosen"], head)

    def test_threads_are_named_as_the_choice_of_the_config(self):
        report, _ = self.report(0, "--set", "csd.io=threads", "--set", f"csd.path={self.folder}")
        self.assertEqual(report["nodes"][0]["findings"]["state_io"]["chosen"], "threads")


if __name__ == "__main__":
    program.main()
