"""Runs on recorded disks, and what goes on from them after a power cut. Used by tests/campaigns/power_cuts."""

import collections
import contextlib
import ctypes
import dataclasses
import json
import os
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

PYTHON = program.ROOT / os.environ.get("NEARSTEP_VENV", ".venv") / "bin/python"
PYTORCH_PROGRAM = pathlib.Path(__file__).with_name("power_cut_program.py")
DISKS = ("state", "log")
LAST = 18  # of the recorded steps
NEW_NAMESPACE, RECURSIVE, PRIVATE = 0x00020000, 1 << 14, 1 << 18  # of linux/sched.h and linux/mount.h
# The disk's size, what a power cut leaves whole, and the command that makes the file system. btrfs cannot be mounted
# if its superblock of 4096 bytes is torn. ext4 writes inodes at once, so that nothing but the run writes to the disk.
FILE_SYSTEMS = {
    "ext4": ("64M", 512, ["mkfs.ext4", "-q", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0"]),
    "xfs": ("320M", 512, ["mkfs.xfs", "-q"]),
    "btrfs": ("192M", 4096, ["mkfs.btrfs", "-q"]),
}


@dataclasses.dataclass(frozen=True)
class Form:
    """How a run makes its steps durable. No manifest's flush covers the other disk, for that has no manifest."""

    ranks: int
    killed_at: int  # which write of rank 0 is the first life's last
    settings: dict
    drives: dict
    counts: tuple = ()  # of the summary, which are not 0
    is_program: bool = False  # of PyTorch, else the command train


SMALL = {"mode": '"su+o+c"', "csd.state": '"compact"', "compress.codec": '"q4"'}
BOTH = {"csd.path": '["state/p", "log/p"]'}
TURNS = {"csd.path": '["state/p"]', "csd.log": '["log/p"]'}
# Where some runs go on: with as many logs as there are by default, also where there were none.
MOVED_TO = {TURNS["csd.path"]: TURNS, BOTH["csd.path"]: {**BOTH, "csd.log": TURNS["csd.log"]}}
MORE_LOGS = '["state/l", "log/p"]'  # a folder before that of the logs
# Some of the first steps are skipped, and in some the guess that nothing clips is wrong.
WILD = {"model.dtype": '"fp16"', "train.loss_scale": 65536, "train.clip_norm": 6.3, "train.learning_rate": 0.1}
COUNTS = ("clip_misses", "skipped_steps")
FORMS = {
    "turns": Form(1, 90, SMALL, {**TURNS, "csd.log_gb": 0.001}),
    "places": Form(1, 40, {}, BOTH),
    "ranks": Form(2, 24, {}, BOTH),
    "wild-turns": Form(1, 30, {**SMALL, **WILD, "compress.warmup_steps": 7}, {**TURNS, "csd.log_gb": 0.003}, COUNTS),
    "wild-places": Form(1, 30, WILD, BOTH, COUNTS),
    "program-turns": Form(1, 60, {}, {**TURNS, "csd.log_gb": 0.006}, is_program=True),
    "program-places": Form(1, 40, {}, BOTH, is_program=True),
}


def tool(*words):
    """The output of a command that must succeed."""
    return subprocess.run([*map(str, words)], text=True, capture_output=True, check=True).stdout.strip()


def take_own_mounts():
    """Keeps mounts from processes that others start in namespaces of their own: XFS refuses to mount a second disk with
    the same UUID while a copy of the first mount is left anywhere."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NAMESPACE) or libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None):
        raise OSError(ctypes.get_errno(), "cannot take a mount namespace")


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

    def train(self, form, place, ranks, settings, *flags, fault=""):
        """Trains in a folder, without the checkpoints of earlier runs."""
        shutil.rmtree(place / "checkpoints", ignore_errors=True)
        keys = {"checkpoint.path": '"checkpoints"', **settings}
        words = ["train", "../small.toml", *(f"--set={key}={value}" for key, value in keys.items()), *flags]
        of_form = [PYTHON, PYTORCH_PROGRAM] if form.is_program else [program.PROGRAM_FORKED]
        words = [*map(str, of_form + words), "--json", "summary.json"]
        if ranks > 1:
            words = [str(program.ROOT / "launch/ranks"), str(ranks), *words]
        limits = {"timeout": program.HANG_S, "stdin": subprocess.DEVNULL, "check": False}
        texts = {"text": True, "errors": "replace", "capture_output": True}
        done = subprocess.run(words, cwd=place, env=program.environment(fault), **texts, **limits)
        done.summary = {} if done.returncode else json.loads((place / "summary.json").read_text())
        done.masters = done.summary.get("masters_xxh3")
        return done

    def undisturbed(self, form, step):
        """The digest of the masters after a step that nothing disturbed."""
        if (form, step) not in self.masters:
            place = self.folder / "undisturbed"
            place.mkdir(exist_ok=True)
            settings = {**FORMS[form].settings, "csd.path": '"p"', "train.stop_at": step}
            done = self.train(FORMS[form], place, FORMS[form].ranks, settings, "--fresh")
            assert done.masters, done.stderr
            assert step < LAST or all(done.summary[name] for name in FORMS[form].counts), done.summary
            self.masters[form, step] = done.masters
        return self.masters[form, step]


class Recording:
    """A run on two disks with their writes. It is killed in the middle of a write and goes on with other subgroups."""

    def __init__(self, campaign, system, form):
        self.campaign, self.system, self.form = campaign, system, form
        self.folder = campaign.folder / f"{system}-{form}"
        point = self.folder / "recorded"
        point.mkdir(parents=True)
        images = [self.folder / f"{disk}.image" for disk in DISKS]
        size, self.sector, make = FILE_SYSTEMS[system]
        for image in images:
            tool("truncate", "--size", size, image)
            tool(*make, image)
            tool("cp", "--sparse=always", image, f"{image}.first")
        said = self.folder / "said"
        said.touch()
        server = recorded_disks.start(point, self.folder / "record", [*images, said])
        try:
            with mounted([point / image.name for image in images], self.folder):
                self.lives(point / said.name)
        finally:
            unmount(point)
            server.wait(program.HANG_S)
        self.record = record = recorded_disks.Record(self.folder / "record", [f"{image}.first" for image in images])
        # The line of a step is written when the step before it is durable.
        steps = [(instant, re.findall(r'"step": ?(\d+)', text)) for instant, text in record.texts]
        self.durable = [(instant, int(step) - 1) for instant, found in steps for step in found]
        begin, self.end = record.texts[0][0], record.texts[-1][0]
        assert all(len(flushes) > LAST for flushes in record.flushes), "the flushes of a disk are missing"
        # Where a disk may lose a write, or a step was just said.
        self.instants, unflushed = [], set()
        for instant, (what, disk, *_) in enumerate(record.entries[: self.end], 1):
            if disk < len(DISKS):
                (unflushed.add if what == recorded_disks.A_WRITE else unflushed.discard)(disk)
            if instant >= begin and (unflushed or disk >= len(DISKS)):
                self.instants.append(instant)

    def lives(self, said):
        """Steps are said in a recorded file, so that their instants are exact."""
        form, train = FORMS[self.form], self.campaign.train
        settings = {**form.settings, **form.drives, "csd.per_rank": 2}
        said.write_text("begin\n")
        fault = f"phase=mid_write count={form.killed_at} action=kill"
        first = {**settings, "csd.subgroup_tiles": 2}
        done = train(form, self.folder, form.ranks, first, "--metrics", said, fault=fault)
        assert done.returncode not in (0, 2), done.stderr
        second = {**settings, "csd.subgroup_tiles": 1, "train.stop_at": LAST}
        done = train(form, self.folder, form.ranks, second, "--resume", "--metrics", said)
        assert done.masters == self.campaign.undisturbed(self.form, LAST), done.stderr
        said.write_text(json.dumps({"step": LAST + 1}))


def replay(recording, instant, draw):
    """Cuts the power at an instant, and goes on from what is left; returns what is counted."""
    campaign, form, folder = recording.campaign, FORMS[recording.form], recording.folder
    durable = max((step for said, step in recording.durable if said <= instant), default=0)
    copies = [folder / f"{disk}.cut" for disk in DISKS]
    counts = collections.Counter(cuts=1)
    for number, copy in enumerate(copies):
        fates = recording.record.cut(number, instant, draw, copy, recording.sector)
        counts.update(dict(zip(("kept", "dropped", "torn"), fates)))
    ranks = form.ranks if form.is_program else draw.choice([form.ranks, form.ranks, 3 - form.ranks])
    # Other ranks add gradients in another order, so what they go on from is compared, and no later step.
    stop_at = min(durable + 3, STEPS) if ranks == form.ranks else 1
    choices = [form.drives, MOVED_TO[form.drives["csd.path"]]]
    choices.append({**form.drives, "csd.log": MORE_LOGS} if "csd.log" in form.drives else form.drives)
    drives = draw.choice(choices)
    settings = {**form.settings, **drives, "csd.subgroup_tiles": 1, "csd.per_rank": draw.choice([1, 2])}
    flag = "--resume" if durable else "--resume-if-any"
    try:
        with mounted(copies, folder):
            done = campaign.train(form, folder, ranks, {**settings, "train.stop_at": stop_at}, flag)
            start = int((re.findall(r"resumed from .* at step (\d+)", done.stdout) or ["0"])[-1])
            failure = fault_in(recording, done, durable, start, stop_at, ranks)
            counts.update(lost=bool(failure), resumes=start > 0)
            if failure:
                kept = tempfile.mkdtemp(prefix="power-cut-", dir=program.scratch())
                large = shutil.ignore_patterns("*.image*", "*.cut", "record*")
                shutil.copytree(folder, kept, ignore=large, dirs_exist_ok=True)
                failure += f" (files: {kept})"
    except subprocess.CalledProcessError as error:
        counts.update(not_mounted=1)
        failure = f"{error} {error.stderr}"
    if failure:
        print(f"FAILED at {instant} of {recording.end}, {ranks} ranks, {flag}, {settings}:")
        print(f"  step {durable} was durable, and {failure}", flush=True)
    return counts


def fault_in(recording, done, durable, start, stop_at, ranks):
    """Why a run did not go on from the durable step or a newer one with the masters of an undisturbed run."""
    if done.returncode != 0:
        return f"it ended with code {done.returncode}: {done.stderr.strip()[-600:]}" if durable else ""
    if start < durable:
        return f"it went on from step {start}"
    if start or ranks == FORMS[recording.form].ranks:
        expected = recording.campaign.undisturbed(recording.form, max(start, stop_at))
        if done.masters != expected:
            return f"from step {start} to {stop_at} it has the masters {done.masters}, not {expected}"
    return ""
