"""Ranks that PyTorch starts: every form of parallelism beside torch.optim.AdamW, kills, and restarts on other ranks
and meshes. NEARSTEP_TEST_DEVICE=cuda: by NCCL on two GPUs, or on one, each form on a mesh of one rank."""

import importlib.util
import re
import shutil
import subprocess
import unittest

import launcher

launcher.need()
OF_ALL = ("experts", "mixed", "checkpointed")
OF_TWO = (
    "plain",
    "ddp",
    "fsdp",
    "recomputed",
    "compiled",
    "replicated",
    "offloaded",
    "from_meta",
    "tensor_parallel",
    "own_clipping",
    "accumulated",
    "replaced",
    "saved",
    "refused",
    "hosts",
    "left",
)
FORMS = {2: OF_ALL + OF_TWO, 4: (*OF_ALL, "hsdp", "tensor_parallel_in_shards"), 1: ("fsdp", "ddp", "replaced")}
# Forms that compute the same with the same division of the parameters.
EQUAL = {2: (("plain", "ddp"), ("fsdp", "recomputed", "compiled", "from_meta", "replaced"))}
ONCE_MORE = ("experts", "mixed", "replicated", "tensor_parallel")
KILLS = (("fsdp", "0@2@after"), ("ddp", "1@2@before"))
MOST_RANKS = 4
IS_ON_GPU = launcher.DEVICE != "cpu"
if IS_ON_GPU:  # a GPU is one rank's
    MOST_RANKS = min(2, max(1, launcher.gpus()))
    FORMS.pop(4)
    FORMS[2] = tuple(form for form in FORMS[2] if form != "refused")  # its modules are on the CPU
    # A compiled layer of a GPU has products of its own.
    EQUAL = {2: (("plain", "ddp"), ("fsdp", "recomputed", "from_meta", "replaced"))}
    ONCE_MORE = ("fsdp", "ddp", "mixed", "tensor_parallel")
if MOST_RANKS == 1:
    NEED_MORE = ("experts", "saved", "left", "hosts")
    FORMS = {1: tuple(form for form in FORMS[2] if form not in NEED_MORE)}
    EQUAL = {1: EQUAL[2]}
    KILLS = (("fsdp", "0@2@after"), ("ddp", "0@2@before"))
MOVES = (  # the first one process has a state of the whole model
    (1, "plain"),
    (2, "fsdp"),
    (2, "nearstep-run"),
    (4, "tensor_parallel_in_shards"),
    (2, "ddp"),
)
MOVES_OF_CHECKPOINTS = ((1, "fsdp"), (2, "nearstep-run"), (2, "fsdp"), (1, "plain"))


class Local(launcher.FolderTest):
    def train(self, name, ranks, form, steps, kill="", fails=False, by_mpi=False):
        """Rows of the worker's lines: the form, the first step, the digest, the difference from AdamW in memory, and
        the forwards."""
        worker = launcher.Process(
            ranks if by_mpi else 1,
            "local_worker.py",
            self.folder / name,
            ranks,
            form,
            steps,
            *filter(None, [kill]),
        )
        code = worker.wait(300)
        self.assertEqual(code != 0, fails, worker.text())
        rows = [line.split() for line in worker.text().splitlines() if line and line.split()[0] in form.split(",")]
        if not fails:
            self.assertEqual([row[0] for row in rows], [one for one in form.split(",") if one], worker.text())
            for row in rows:
                self.assertLess(float(row[3]), 1e-5, row)
        return [(int(row[1]), row[2], int(row[4])) for row in rows]

    def test_each_form_is_as_in_memory_and_has_the_same_bits_twice(self):
        """A run that is killed ends with these bits, too: before the ranks agree on a step, and when one takes it and
        the other does not."""
        found = {}
        for ranks, forms in FORMS.items():
            with self.subTest(ranks=ranks):
                rows = self.train(f"{ranks}-once", ranks, ",".join(forms) + ",", 4)
                found.update({(ranks, form): row for form, row in zip(forms, rows)})
        for ranks, groups in EQUAL.items():
            for first, *others in groups:
                self.assertEqual({found[ranks, form][1] for form in others}, {found[ranks, first][1]}, (ranks, first))
        ranks = min(2, MOST_RANKS)
        again = self.train("again", ranks, ",".join(ONCE_MORE), 4)
        self.assertEqual(again, [found[ranks, form] for form in ONCE_MORE])
        for form, kill in KILLS:
            with self.subTest(form=form, kill=kill):
                self.train(kill, ranks, form, 4, kill, fails=True)
                [(start, *rest)] = self.train(kill, ranks, form, 4)
                self.assertIn(start, (1, 2))  # a step that has ended may not be durable yet when the next one begins
                self.assertEqual(rest, list(found[ranks, form][1:]))

    @unittest.skipIf(MOST_RANKS < 2, "it needs several ranks")
    def test_goes_on_on_other_ranks_and_meshes_and_under_other_launchers(self):
        moves = [(ranks, form) for ranks, form in MOVES if ranks <= MOST_RANKS]
        for number, (ranks, form) in enumerate(moves):
            self.move(number, ranks, form, "save")
        folders = {path.name for path in (self.folder / "moved/state").iterdir()}
        layout = ".layout-1" if len(moves) == len(MOVES) else ""  # another division over two ranks came before
        self.assertEqual(folders, {f"rank-{rank}-of-2{layout}" for rank in range(2)})

    @unittest.skipIf(MOST_RANKS < 2, "it needs several ranks")
    def test_checkpoints_go_on_on_other_ranks_and_under_other_launchers(self):
        self.move(0, *MOVES[-1], "save")
        for number, (ranks, form) in enumerate(MOVES_OF_CHECKPOINTS, 1):
            shutil.rmtree(self.folder / "moved/state")
            self.move(number, ranks, form, "from")

    @unittest.skipIf(MOST_RANKS < 2, "it needs several ranks")
    def test_parameters_without_a_module_go_on_on_other_ranks(self):
        for ranks in (2, 1):
            [(start, *_)] = self.train("replaced", ranks, "replaced", 6 - 2 * ranks)
            self.assertEqual(start, 0 if ranks == 2 else 2)

    def move(self, number, ranks, form, how):
        """Two more steps."""
        by_mpi = form == "nearstep-run"
        with self.subTest(ranks=ranks, form=form, how=how):
            steps = 2 * number
            [(start, _, seen)] = self.train("moved", ranks, "plain" if by_mpi else form, steps + 2, how, by_mpi=by_mpi)
            self.assertEqual((start, seen), (steps, steps + 2))

    def launch(self, starter, ranks, script, *words, is_refused=False, **variables):
        """Returns what the launcher and its ranks print; ``is_refused``: as errors."""
        many = {
            "torch.distributed.run": ("--standalone", "--nproc-per-node", ranks, "--no-python"),
            "accelerate.commands.launch": (
                *("--multi_gpu", "--num_machines", 1, "--num_processes", ranks, "--main_process_port", 0),
                *("--mixed_precision", "no", "--dynamo_backend", "no", "--no_python"),
            ),
        }[starter]
        done = subprocess.run(
            [
                launcher.python(),
                importlib.util.find_spec(starter).origin,
                *map(str, (*many, launcher.python(), script, *words)),
            ],
            text=True,
            capture_output=True,
            env=launcher.environment(**variables),
            timeout=300,
        )
        self.assertEqual(done.returncode != 0, is_refused, done.stderr[-4000:])
        return done.stdout + done.stderr

    @unittest.skipIf(MOST_RANKS < 2, "it needs several ranks")
    def test_the_loop_with_fully_shard_learns_and_goes_on_on_other_ranks(self):
        loop, losses = launcher.HERE.parents[1] / "examples/fsdp_loop.py", []
        for ranks, steps in ((2, 4), (1, 6)):
            said = self.launch(  # without compilation, which the form "compiled" has
                "torch.distributed.run", ranks, loop, self.folder, STEPS=str(steps), TORCHDYNAMO_DISABLE="1"
            )
            self.assertIn("2 ranks; rank 0 updates" if ranks > 1 else "1 rank, state on", said)
            losses.append([(int(step), float(loss)) for step, loss in re.findall(r"step (\d+) loss ([0-9.]+)", said)])
        self.assertEqual([step for step, _ in losses[0] + losses[1]], [1, 2, 3, 4, 5, 6])
        self.assertLess(losses[1][-1][1], losses[0][0][1] - 2)

    @unittest.skipIf(MOST_RANKS < 2, "it needs several ranks")
    @unittest.skipIf(launcher.missing("accelerate"), "accelerate is not installed")
    def test_accelerate_launch(self):
        """The model is on the CPU, also where the program's process group takes tensors of GPUs alone."""
        for begin in ("", f"torch.distributed.init_process_group('cuda:{'nccl' if IS_ON_GPU else 'gloo'}')\n"):
            with self.subTest(begin=begin):
                said = self.launch(
                    "accelerate.commands.launch", 2, self.script(begin, ""), self.folder / f"state-{len(begin)}"
                )
                self.assertEqual(said.count("step 1 of 2 ranks"), 2)

    @unittest.skipIf(MOST_RANKS < 2 or not IS_ON_GPU, "it needs several GPUs")
    def test_ranks_on_one_gpu_are_refused(self):
        said = self.launch(
            "torch.distributed.run", 2, self.script("", ".cuda(0)"), self.folder / "state", is_refused=True
        )
        self.assertIn("Ranks 0 and 1 have their parameters on the same GPU (cuda:0): call torch.cuda.set_device", said)

    def script(self, begin, place):
        script = self.folder / "train.py"
        script.write_text(
            f"import torch, nearstep, sys\n{begin}model = torch.nn.Linear(4, 4){place}\n"
            "opt = nearstep.AdamW(model, path=sys.argv[1])\n"
            f"model(torch.ones(2, 4){place}).sum().backward()\nopt.step()\n"
            "print(f'step {opt.steps} of {opt.ranks} ranks')\n"
        )
        return script


if __name__ == "__main__":
    launcher.start_forks(
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torch.distributed.run",
        "accelerate.commands.launch",
        launcher.COMPILER,
    )
    launcher.main()
