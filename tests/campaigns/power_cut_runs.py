"""Runs on recorded disks, and what goes on from them after a power cut. Used by tests/campaigns/power_cuts."""

import contextlib
import dataclasses
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "scenarios"))
import program  # noqa: E402
import recorded_disks  # noqa: E402
from restart_round import CONFIG, STEPS  # noqa: E402

DISKS = ("state", "log")
LAST = 18  # of the recorded steps
# Inodes are written at once, so that nothing but the run writes to the disk.
FILE_SYSTEMS = {
    "ext4": ("mkfs.ext4", "64M", ["-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
    "xfs": ("mkfs.xfs", "320M", ["-q"]),
    "btrfs": ("mkfs.btrfs", "192M", ["-q"]),
}


@dataclasses.dataclass(frozen=True)
class Form:
    """How a run makes its steps durable. The other disk has files alone, so that no manifest's flush covers theirs."""

    ranks: int
    killed_at: int  # which write of rank 0 is the first life's last
    settings: dict
    drives: dict


FORMS = {
    "turns": Form(
        1,
        90,
        {"mode": '"su+o+c"', "csd.state": '"compact"', "compress.codec": '"q4"'},
        {"csd.path": '["state/p"]', "csd.log": '["log/p"]', "csd.log_gb": 0.0009},
    ),
    "places": Form(2, 24, {}, {"csd.path": '["state/p", "log/p"]'}),
}


def tool(*words):
    """The output of a command that must succeed."""
    done = subprocess.run([*map(str, words)], text=True, capture_output=True, timeout=program.HANG_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout.strip()


def unmount(folder):
    for _ in range(100):
        if subprocess.run(["umount", folder], capture_output=True, check=False).returncode == 0:
            return
        time.sleep(0.05)
    tool("umount", "--lazy", folder)


@contextlib.contextmanager
def mounted(files, folder):
    """Mounts a loop device over each file, in a folder of the disk's name."""
    with contextlib.ExitStack() as stack:
        for disk, file in zip(DISKS, files):
            device = tool("losetup", "--find", "--show", "--direct-io=off", file)
            stack.callback(tool, "losetup", "--detach", device)
            (folder / disk).mkdir(exist_ok=True)
            tool("mount", device, folder / disk)
            stack.callback(unmount, folder / disk)
        yield


class Campaign:
    """The folder with the config and the text, and the masters of undisturbed runs."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "small.toml").write_text(CONFIG)
        program.write_text(folder / "text.txt")
        self.masters = {}

    def train(self, place, ranks, settings, *flags, fault=""):
        """Trains in a folder, with checkpoints in one that is made anew."""
        shutil.rmtree(place / "checkpoints", ignore_errors=True)
        keys = {"checkpoint.path": '"checkpoints"', "csd.subgroup_tiles": 1, **settings}
        words = ["train", "../small.toml", *(f"--set={key}={value}" for key, value in keys.items())]
        words = [str(program.PROGRAM_FORKED), *words, "--json", "summary.json", *flags]
        if ranks > 1:
            words = [str(program.ROOT / "launch/ranks"), str(ranks), *words]
        done = subprocess.run(
            words,
            cwd=place,
            env=program.environment(fault),
            text=True,
            errors="replace",
            capture_output=True,
            timeout=program.HANG_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        return done

    def undisturbed(self, form, step):
        """The digest of the masters after a step that nothing disturbed."""
        if (form, step) not in self.masters:
            place = self.folder / "undisturbed"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            settings = {**FORMS[form].settings, "csd.path": '"p"', "train.stop_at": step}
            done = self.train(place, FORMS[form].ranks, settings, "--fresh")
            assert done.returncode == 0, done.stderr
            self.masters[form, step] = masters_of(place)
        return self.masters[form, step]


def masters_of(place):
    return json.loads((place / "summary.json").read_text())["masters_xxh3"]


class Recording:
    """A run on two disks with their writes. It is killed in the middle of a write and goes on with other devices."""

    def __init__(self, campaign, system, form):
        self.campaign, self.system, self.form = campaign, system, form
        self.folder = campaign.folder / f"{system}-{form}"
        self.folder.mkdir()
        images = [self.folder / f"{disk}.image" for disk in DISKS]
        tool_name, size, options = FILE_SYSTEMS[system]
        for image in images:
            tool("truncate", "--size", size, image)
            tool(tool_name, *options, image)
            tool("cp", "--sparse=always", image, f"{image}.first")
        said = self.folder / "said"
        said.touch()
        point = self.folder / "recorded"
        point.mkdir()
        server = recorded_disks.start(point, self.folder / "record", [*images, said])
        try:
            with mounted([point / image.name for image in images], self.folder):
                self.lives(point / said.name)
        finally:
            unmount(point)
            server.wait(program.HANG_S)
        self.record = recorded_disks.Record(self.folder / "record", len(DISKS))
        self.images = [
            recorded_disks.Image(self.record, number, pathlib.Path(f"{image}.first"))
            for number, image in enumerate(images)
        ]
        self.note_instants()

    def lives(self, said):
        """Steps are said in a recorded file, so that their instants are exact."""
        form = FORMS[self.form]
        settings = {**form.settings, **form.drives}
        train = self.campaign.train
        with open(said, "a", buffering=1) as file:
            file.write("begin\n")
        first = {**settings, "csd.per_rank": 2}
        fault = f"phase=mid_write count={form.killed_at} action=kill"
        done = train(self.folder, form.ranks, first, "--metrics", said, fault=fault)
        assert done.returncode not in (0, 2), done.stderr
        second = {**settings, "csd.per_rank": 1, "train.stop_at": LAST}
        done = train(self.folder, form.ranks, second, "--resume", "--metrics", said)
        assert done.returncode == 0, done.stderr
        with open(said, "a", buffering=1) as file:
            file.write(json.dumps({"step": LAST + 1}) + "\n")
            file.write("end\n")

    def note_instants(self):
        """The instants of the run, and with each line of a step the newest durable one: the step before it."""
        lines = self.record.text_lines()
        steps = [(instant, int(found)) for instant, text in lines for found in re.findall(r'"step": ?(\d+)', text)]
        self.durable = [(instant, step - 1) for instant, step in steps]
        self.begin = min(instant for instant, text in lines if "begin" in text)
        self.end = max(instant for instant, text in lines if "end" in text)
        assert all(self.record.flushes(number, self.end) > LAST for number in range(len(DISKS))), "flushes are missing"

    def instants(self):
        """The instants after a write or after what was said."""
        entries = self.record.entries
        return [at for at in range(self.begin + 1, self.end + 1) if entries[at - 1][0] == recorded_disks.A_WRITE]

    def durable_at(self, instant):
        return max((step for said, step in self.durable if said < instant), default=0)


@dataclasses.dataclass
class Cut:
    """One power cut, and what came of it."""

    instant: int
    durable: int
    commands: list
    writes: list  # whole, missing and torn
    start: int = 0
    failure: str = ""
    kept: str = ""  # folder with the files of a failure
    is_lost: bool = False  # masters of a durable step


def replay(recording, instant, draw):
    """Cuts the power at an instant, and goes on from what is left."""
    campaign, form, folder = recording.campaign, FORMS[recording.form], recording.folder
    cut = Cut(instant, recording.durable_at(instant), [], [0, 0, 0])
    copies = [folder / f"{disk}.cut" for disk in DISKS]
    for image, copy in zip(recording.images, copies):
        cut.writes = [a + b for a, b in zip(cut.writes, image.cut(instant, draw, copy))]
    ranks = draw.choice([form.ranks, form.ranks, 3 - form.ranks])
    # Masters after more steps are compared on as many ranks, for others add gradients in another order.
    stop_at = min(cut.durable + 3, STEPS) if ranks == form.ranks else 1
    settings = {**form.settings, **form.drives, "csd.per_rank": draw.choice([1, 2]), "train.stop_at": stop_at}
    flag = "--resume" if cut.durable else "--resume-if-any"
    cut.commands = [f"{ranks} ranks", flag, str(settings)]
    try:
        with mounted(copies, folder):
            done = campaign.train(folder, ranks, settings, flag)
            judge(recording, cut, done, ranks, stop_at)
            if cut.failure:
                cut.kept = tempfile.mkdtemp(prefix="power-cut-", dir=program.scratch())
                shutil.copytree(
                    folder, cut.kept, ignore=shutil.ignore_patterns("*.image*", "*.cut"), dirs_exist_ok=True
                )
    except OSError as error:
        cut.failure = f"a file system is damaged: {error}"
    return cut


def judge(recording, cut, done, ranks, stop_at):
    """Whether a run went on from the durable step or a newer one, with the masters of an undisturbed run."""
    if done.returncode != 0:
        if cut.durable:
            cut.is_lost = True
            cut.failure = f"it ended with code {done.returncode}: {done.stderr.strip()[-600:]}"
        return
    found = re.findall(r"resumed from .* at step (\d+)", done.stdout)
    cut.start = int(found[-1]) if found else 0
    if cut.start < cut.durable:
        cut.is_lost = True
        cut.failure = f"it went on from step {cut.start}"
    elif cut.start or ranks == FORMS[recording.form].ranks:
        masters = masters_of(recording.folder)
        expected = recording.campaign.undisturbed(recording.form, max(cut.start, stop_at))
        if masters != expected:
            cut.is_lost = True
            cut.failure = f"from step {cut.start} to {stop_at} it has the masters {masters}, not {expected}"
