"""Ranks that PyTorch starts: every form of parallelism beside torch.optim.AdamW, kills, and restarts on other ranks and meshes."""
import launcher

launcher.need()
FORMS = {2: ("plain", "ddp", "fsdp", "offloaded", "from_meta", "tensor_parallel", "own_clipping", "accumulated"),
         4: ("plain", "hsdp", "tensor_parallel_in_shards"), 1: ("fsdp",)}


class Local(launcher.FolderTest):
    def train(self, name, ranks, form, steps, kill="", fails=False):
        """Rows of the worker's lines: the form, the first step, the digest, the difference from AdamW in memory, and the forwards."""
        worker = launcher.Process(1, "local_worker.py", self.folder / name, ranks, form, steps, *([kill] if kill else []))
        code = worker.wait(300)
        self.assertEqual(code != 0, fails, worker.text())
        rows = [line.split() for line in worker.text().splitlines() if line and line.split()[0] in form.split(",")]
        if not fails:
            self.assertEqual([row[0] for row in rows], [one for one in form.split(",") if one], worker.text())
            for row in rows:
                self.assertLess(float(row[3]), 1e-5, row)
        return [(int(row[1]), row[2], int(row[4])) for row in rows]

    def test_each_form_is_as_in_memory_and_has_the_same_bits_twice(self):
        for ranks, forms in FORMS.items():
            with self.subTest(ranks=ranks):
                once, again = (self.train(name, ranks, ",".join(forms) + ",", 4) for name in ("once", "again"))
                self.assertEqual(once, again)

    def test_killed_in_a_step_the_ranks_meet_at_the_oldest(self):
        """Before the ranks agree on the step, and when one of them takes it and the other does not."""
        for form, kill in (("fsdp", "0@3@after"), ("ddp", "1@3@before")):
            with self.subTest(form=form, kill=kill):
                [(_, digest, seen)] = self.train(f"{form}-whole", 2, form, 5)
                self.train(kill, 2, form, 5, kill, fails=True)
                [(start, *found)] = self.train(kill, 2, form, 5)
                self.assertIn(start, (2, 3))  # a step that has ended may not be durable yet when the next one begins
                self.assertEqual(found, [digest, seen])

    def test_goes_on_on_other_ranks_and_meshes(self):
        steps = 0
        for ranks, form in ((2, "fsdp"), (1, "plain"), (4, "tensor_parallel_in_shards"), (2, "ddp"), (2, "fsdp")):
            with self.subTest(ranks=ranks, form=form):
                [(start, _, seen)] = self.train("moved", ranks, form, steps + 2)
                self.assertEqual((start, seen), (steps, steps + 2))
                steps += 2
        folders = {path.name for path in (self.folder / "moved/state").iterdir()}
        self.assertEqual(folders, {f"rank-{rank}-of-2.layout-4" for rank in range(2)})


if __name__ == "__main__":
    launcher.start_forks("torch", "torch.distributed.fsdp", "torch.distributed.tensor.parallel")
    launcher.main()
