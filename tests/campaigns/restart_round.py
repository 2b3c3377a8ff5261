"""One round of tests/campaigns/restart_campaign: lives of a run in its own folder, and what each must fulfil.

A *life* is one start of the program. The round finds the durable step in the files on disk (manifests and indexes of
checkpoints, read here without nearstep) and in the lines of --metrics. From it follows what the next life may do.
"""

import collections
import dataclasses
import hashlib
import json
import pathlib
import random
import re
import shlex
import tempfile
import threading

from restart_running import LIFE_SECONDS, Running, program

STEPS = 24
# 261,120 parameters, 4 tiles: enough for 4 ranks, and a step takes some milliseconds.
CONFIG = f"""mode = "su+o"
[model]
layers = 1
heads = 2
width = 136
context = 16
vocabulary = 256
[train]
steps = {STEPS}
global_batch = 12
micro_batch = 1
learning_rate = 2e-3
warmup_steps = 4
evaluate_batches = 1
[data]
train = "../text.txt"
"""
# Other numbers of ranks add gradients in another order, and in bf16 round other parts of them. Steps 8 and 15 have
# large gradients, which magnify this: undisturbed runs on 1 to 4 ranks differ by up to 3e-7 in fp32 and 1.05e-2 in
# bf16.
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}


@dataclasses.dataclass(frozen=True)
class Layout:
    ranks: int
    per_rank: int = 1
    tiles: int = 1

    def settings(self):
        return {"csd.per_rank": self.per_rank, "csd.subgroup_tiles": self.tiles}


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of history, by what its bits depend on. After a roll-back: up to which step it is Line(ranks, dtype)."""

    ranks: int
    dtype: str
    seed: int = 1
    branched_at: int = 0
    learning_rate: str = ""

    def settings(self):
        return {
            "model.dtype": self.dtype,
            "train.seed": self.seed,
            **({"train.learning_rate": self.learning_rate} if self.learning_rate else {}),
            **({"train.loss_scale": 2.0**32} if self.dtype == "fp16" else {}),
        }


@dataclasses.dataclass
class Life:
    code: int
    out: str
    err: str
    losses: dict  # by step
    summary: dict
    has_changed: bool  # whether a byte in the round's folders of state and checkpoints changed
    fault: str

    @property
    def reason(self):
        """Why it ended, in nearstep's words, not mpirun's."""
        return (
            " ".join(line for line in self.err.splitlines() if line.startswith("nearstep: ")) or self.err.strip()[-500:]
        )

    @property
    def start(self):
        """The step that it resumed from; None if it did not get that far."""
        if self.losses:
            return min(self.losses) - 1
        said = re.findall(r"resumed from .* at step (\d+)", self.out)
        return int(said[-1]) if said else None


def lines_of(metrics):
    """The loss of each step. A killed run may leave half a line."""
    losses = {}
    if metrics.exists():
        for line in metrics.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if "loss" in record:
                losses[record["step"]] = record["loss"]
    return losses


def digest_of(folders):
    """A digest of the names and bytes of all files in the folders."""
    digest = hashlib.blake2b()
    for folder in folders:
        for path in [folder, *sorted(folder.rglob("*"))]:
            digest.update(f"{path} {path.is_dir()} {path.exists()}\n".encode())
            if path.is_file():
                digest.update(path.read_bytes())
    return digest.hexdigest()


def harm(this, path, how, begin=0, end=None):
    """Cuts the file, or flips a bit of it, at a random offset in [begin, end)."""
    at = this.draw.randrange(begin, end or path.stat().st_size)
    if how == "torn":
        with open(path, "rb+") as file:
            file.truncate(at)
    else:
        with open(path, "rb+") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ (1 << this.draw.randrange(8))]))
    this.commands.append(f"{how} at byte {at}: {path.relative_to(this.folder)}")


def arguments_of(layout, line, settings, flags):
    """The arguments of a life. Its working folder is in the campaign's, which has the config and the text."""
    keys = {**layout.settings(), **line.settings(), **settings}
    return ["train", "../small.toml", *(f"--set={key}={value}" for key, value in keys.items()), *map(str, flags)]


class References:
    """Undisturbed runs, each made once, in folders below one that has the config and the text."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "small.toml").write_text(CONFIG)
        program.write_text(folder / "text.txt")
        self.lock = threading.Lock()
        self.locks = collections.defaultdict(threading.Lock)
        self.known = {}

    def of(self, line, stop_at=STEPS):
        """Losses by step, and the masters after stop_at."""
        key = (line, stop_at)
        with self.lock:
            one = self.locks[key]
        with one:
            if key not in self.known:
                self.known[key] = self.run(line, stop_at)
            return self.known[key]

    def run(self, line, stop_at):
        flags = []
        if line.branched_at:
            trunk = Line(line.ranks, line.dtype)
            flags = ["--from", self.start(trunk, line.branched_at, []) / f"p/checkpoints/step-{line.branched_at:08}.h5"]
        place = self.start(line, stop_at, flags)
        return lines_of(place / "metrics.jsonl"), json.loads((place / "summary.json").read_text())["masters_xxh3"]

    def start(self, line, stop_at, flags):
        """Makes a run; returns its folder."""
        place = pathlib.Path(tempfile.mkdtemp(prefix="reference-", dir=self.folder))
        settings = {"csd.path": '"p"', "train.stop_at": stop_at}
        arguments = arguments_of(
            Layout(line.ranks), line, settings, [*flags, "--json", "summary.json", "--metrics", "metrics.jsonl"]
        )
        code, out, err = Running(line.ranks, arguments, "", place, "said").finish()
        if code != 0:
            raise RuntimeError(f"The undisturbed run ended with code {code}: {shlex.join(arguments)}\n{out}\n{err}")
        return place


class Round:
    """A round: what was done, what is durable, and what went wrong."""

    def __init__(self, seed, number, folder, references):
        self.draw = random.Random(f"{seed} {number}")
        self.folder, self.references = folder, references
        folder.mkdir(parents=True)
        self.faults, self.skipped = collections.Counter(), collections.Counter()
        self.commands, self.failures = [], []
        self.refusals = self.resumes = self.lost = 0
        self.layout = Layout(
            self.draw.choice([1, 2, 2, 3, 4]), self.draw.choice([1, 1, 2]), self.draw.choice([1, 1, 2])
        )
        self.line = Line(self.layout.ranks, self.draw.choice(["bf16", "fp32"]))
        self.is_exact = True  # no other number of ranks took part
        self.folders = [folder / "p0", folder / "p1"]
        self.checkpoints = self.draw.choice([folder / "checkpoints", folder / "p0/checkpoints"])
        self.settings = {
            "csd.path": '["p0","p1"]',
            "checkpoint.path": f'"{self.checkpoints.relative_to(folder)}"',
            "checkpoint.every": self.draw.choice([0, 3, 5]),
        }
        # In each third round, if it is on a drive. Few steps fit the logs, so that their turns come round.
        self.logs = {"csd.log": '["logs"]', "csd.log_gb": 0.005}
        is_in_memory = str(folder).startswith("/dev/shm")
        if number % 3 != 2 or is_in_memory:
            self.logs = {}
        self.has_two_places = not self.logs and not is_in_memory  # of each subgroup
        self.durable = 0  # the newest step of the line that must not be lost
        self.reached = 0  # the newest step that was computed
        for device in self.folders:
            device.mkdir()

    def fail(self, kind, sentence):
        self.failures.append((kind, f"{sentence} (life {len(self.commands)})"))

    # --- What is on disk ---

    def commits(self, layout=None):
        """Returns for each rank the steps by generation in its manifest; None if it has no whole manifest."""
        found = []
        for rank in range((layout or self.layout).ranks):
            # Another layout may have left an older manifest under another name, or in another folder.
            paths = [path for folder in self.folders for path in folder.glob(f"rank-{rank}.*manifest")]
            newest = max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)
            found.append(
                {
                    int(generation): int(step)
                    for step, generation in re.findall(
                        r"^commit = step (\d+) generation (\d+) ", newest.read_text(errors="replace"), re.M
                    )
                }
                if newest
                else None
            )
        return found

    def newest_in_state(self):
        """The newest step that all manifests list; -1 if there is none."""
        commits = self.commits()
        if any(one is None for one in commits):
            return -1
        common = set.intersection(*(set(one) for one in commits))
        return min(one[max(common)] for one in commits) if common else -1

    def newest_checkpoint(self):
        """The index of the newest checkpoint; None if there is none."""
        return max(self.checkpoints.glob("step-????????.h5"), default=None)

    def checkpoint_step(self):
        index = self.newest_checkpoint()
        return int(index.name[5:13]) if index else -1

    def has_trace(self):
        """Whether anything is left that tells of steps. An empty file may be of a run that was killed before its first,
        but the second set of names is used only beside a state with steps."""
        return any(
            path.is_file() and (path.stat().st_size or ".set-1." in path.name)
            for folder in (*self.folders, self.checkpoints)
            for path in folder.rglob("*")
        )

    # --- What a user types ---

    def command(self, flags, layout, settings):
        number = len(self.commands) + 1
        files = ["--metrics", f"life-{number}.jsonl", "--json", f"life-{number}.json"]
        settings = {**self.settings, **settings}
        if settings.get("csd.durability", "step") == "step":
            settings = {**self.logs, **settings}
        return arguments_of(layout or self.layout, self.line, settings, [*flags, *files])

    def digest(self):
        return digest_of([*self.folders, self.folder / "logs", self.checkpoints])

    def begin_life(self, flags=(), layout=None, fault="", most_file_bytes=None, **settings):
        """Starts a life and returns at once."""
        settings = {key.replace("__", "."): value for key, value in settings.items()}
        arguments = self.command(flags, layout, settings)
        ranks = (layout or self.layout).ranks
        self.commands.append(
            (f"NEARSTEP_FAULT={shlex.quote(fault)} " if fault else "")
            + (f"prlimit --fsize={most_file_bytes} " if most_file_bytes else "")
            + (f"launch/ranks {ranks} " if ranks > 1 else "")
            + f"nearstep {shlex.join(arguments)}"
        )
        before = self.digest()
        running = Running(ranks, arguments, fault, self.folder, f"life-{len(self.commands)}", most_file_bytes)
        running.number, running.fault, running.before = (
            len(self.commands),
            fault or most_file_bytes and "action=fail",
            before,
        )
        return running

    def end_life(self, running, is_named=False):
        """is_named: the user named the step to resume from, so the line may begin earlier."""
        code, out, err = running.finish()
        summary = self.folder / f"life-{running.number}.json"
        life = Life(
            code,
            out,
            err,
            lines_of(self.folder / f"life-{running.number}.jsonl"),
            json.loads(summary.read_text()) if code == 0 and summary.exists() and summary.stat().st_size else {},
            self.digest() != running.before,
            running.fault,
        )
        self.commands[running.number - 1] += (
            f"  # code {code}, from {life.start}, steps {min(life.losses, default='-')}"
            f" to {max(life.losses, default='-')}"
        )
        self.check_line(life, is_named)
        return life

    def life(self, *arguments, is_named=False, **options):
        return self.end_life(self.begin_life(*arguments, **options), is_named)

    def note_durable(self, life):
        """Records the steps that the life, which continued the line, made durable."""
        self.reached = max([self.reached, *life.losses])
        if self.settings.get("csd.durability", "step") == "step":
            # A step's line is written after the previous step's commit. A life that ends by itself commits its last
            # step.
            promised = max([0, *life.losses]) - (0 if life.code in (0, 75) else 1)
            if life.losses and self.newest_in_state() < promised:
                self.fail(
                    "steps lost",
                    f"the metrics come to step {max(life.losses)}, it ended with code {life.code}, and the "
                    f"manifests hold step {self.newest_in_state()}, older than {promised}",
                )
            self.durable = max(self.durable, promised, self.newest_in_state())
        self.durable = max(self.durable, self.checkpoint_step())

    def note_durable_of_branch(self, life):
        """Notes the durable step of the first life of a new line, next to files of older lines: only its own lines
        count."""
        self.reached = max([self.reached, *life.losses])
        promised = max([0, *life.losses]) - 1
        if self.settings.get("csd.durability", "step") == "checkpoint":
            every = self.settings["checkpoint.every"]
            promised = promised // every * every
        self.durable = max(self.durable, promised)

    def check_line(self, life, is_named):
        """Every step has the loss of the undisturbed run, and the steps are consecutive."""
        losses, _ = self.references.of(self.line)
        steps = sorted(life.losses)
        if steps and steps != list(range(steps[0], steps[-1] + 1)):
            self.fail("wrong lines", f"the steps {steps} do not follow each other")
        for step in steps:
            expected, seen = losses.get(step), life.losses[step]
            limit = 0 if self.is_exact else TOLERANCE[self.line.dtype] * abs(expected or 0)
            if expected is None or not abs(seen - expected) <= limit:
                self.fail("wrong lines", f"the loss of step {step} is {seen} instead of {expected}")
                break
        if life.start is not None and not is_named:
            if life.start > self.reached + 1:
                self.fail("wrong lines", f"it went on from step {life.start}, though the line came to {self.reached}")
            self.reached = max(self.reached, life.start)  # a step may be durable before its line is written

    def check_masters(self, life, step=STEPS):
        expected = self.references.of(self.line, step)[1]
        if self.is_exact and life.code == 0 and life.summary.get("masters_xxh3") != expected:
            self.fail(
                "wrong lines",
                f"the masters of step {step} are {life.summary.get('masters_xxh3')} instead of {expected}",
            )

    def judge(self, life, least=None, may_refuse=False, may_start_anew=False, where=""):
        """Whether a resuming life behaved as allowed. True: it continued, or was ended by its planned fault."""
        least = self.durable if least is None else least
        if life.code in ("hangs", 124):
            self.fail("hangs", f"it did not end within {LIFE_SECONDS} s{where}")
        if life.code == 2:
            self.refusals += 1
            if life.has_changed:
                self.fail("bad refusals", f"a refusal changed the folder{where}: {life.reason}")
            if not re.match(r"nearstep: \S.*\.$", life.reason):
                self.fail("bad refusals", f"a refusal says no sentence{where}: {life.reason}")
            # A life ends before its planned fault if an earlier life left nothing to resume from.
            has_nothing = may_refuse and life.reason.startswith("nearstep: There is no checkpoint in ")
            if life.fault and "action=f" in life.fault and not has_nothing:
                self.fail("bad refusals", f"an I/O error ended with code 2{where}: {life.reason}")
            elif not may_refuse:
                self.fail("bad refusals", f"step {least} is durable, and it refused{where}: {life.reason}")
            return False
        if life.code not in (0, "hangs", 124) and not life.fault:
            self.fail("bad refusals", f"it ended with code {life.code}{where}: {life.reason}")
            return False
        if life.start is None:
            if life.code == 0:
                self.fail("bad refusals", f"it ended with code 0 and did nothing{where}")
            return life.code != 0
        if life.start == 0 and least > 0 and not may_start_anew:
            self.fail("silent restarts", f"it began anew, though step {least} is durable{where}")
        elif life.start < least and not (life.start == 0 and may_start_anew):
            self.lost += least - life.start
            self.fail("steps lost", f"it went on from step {life.start}, though step {least} is durable{where}")
        else:
            self.resumes += 1
        return True
