"""Forks of a process that trains, or will, end at once and leave its optimizer and its part in MPI alone."""

import re

import launcher

launcher.need()
IN_FORKS = {"LD_PRELOAD": str(launcher.programs.find("mpi_in_forks"))}


class Forks(launcher.FolderTest):
    def test_forks_end_and_the_process_trains_on(self):
        import torch

        import networks

        launcher.start_forks("torch")
        worker = launcher.Process(1, "fork_worker.py", self.folder)
        self.assertEqual(worker.wait(), 0, worker.text())
        said = worker.text()
        self.assertEqual(re.findall("codes (.*)", said), ["[0, 0, 7, 7, 7, 0, 8, 3]", "[0, 0]"], said)
        self.assertEqual(
            len(re.findall("child: RuntimeError: This process is a fork of one that trains", said)), 3, said
        )
        self.assertIn("untouched True", said)
        model = networks.Layers(3, 200)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step, got in enumerate(map(float, re.search(r"losses \[(.*)\]", said)[1].split(","))):
            self.assertAlmostEqual(networks.descend(model.loss(step), optimizer), got, delta=1e-5)

    def test_forks_of_ranks_make_no_call_of_mpi_and_leave_no_note(self):
        launcher.start_forks("torch", **IN_FORKS)
        worker = launcher.Process(2, "fork_ranks_worker.py", self.folder, **IN_FORKS)
        self.assertEqual(worker.wait(), 0, worker.text())
        said = worker.text()
        self.assertEqual(said.count("codes [0, 0, 1, 0, 0, 1, 0, 0, 1] notes [] step 1"), 2, said)
        self.assertEqual(said.count("ValueError: only the fork fails"), 6, said)
        self.assertNotIn("a fork calls", said)


if __name__ == "__main__":
    launcher.main()
