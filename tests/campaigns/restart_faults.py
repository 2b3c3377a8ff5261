"""The faults of restart_campaign. Each is a function of a Round, from the first life to the user's last command."""

import dataclasses
import random
import re
import shutil
import signal
import time
from restart_lives import (
    PHASES,
    RESUMES,
    STORAGE_PHASES,
    finish,
    interrupted,
    kill_at_phase,
    kill_at_random,
    planned_fault,
    resume_damaged,
    stop_by_notice,
    use_another_line,
)
from restart_round import Layout, STEPS, harm


def killed(this):
    if this.draw.random() < 0.3:
        this.settings.update({"csd.durability": "checkpoint", "checkpoint.every": 4})
    life = this.draw.choice([kill_at_random, kill_at_phase, interrupted])(this)
    this.note_durable(life)
    for _ in range(this.draw.randrange(2)):
        again = this.draw.choice([kill_at_random, kill_at_phase, stop_by_notice])(this, this.draw.choice(RESUMES))
        if not this.judge(again, may_refuse=this.durable == 0):
            break
        this.note_durable(again)
    if not finish(this, may_refuse=this.durable == 0) and this.durable == 0:
        finish(this, ["--fresh"], may_start_anew=True)


def killed_in_each_phase(this):
    """Each phase in turn, soon after a start; in fp16 the first steps are skipped, which are commits, too."""
    this.settings["checkpoint.every"] = 3
    if this.draw.random() < 0.3:
        this.line = dataclasses.replace(this.line, dtype="fp16")
    for phase in this.draw.sample(list(PHASES), len(PHASES)):
        # Each step reads, unless slots keep the state.
        settings = {"csd__slots": 4} if phase == "mid_read" else {}
        life = kill_at_phase(this, ["--resume-if-any"], [phase], most=1 + PHASES[phase] // 20, **settings)
        if not this.judge(life, may_refuse=this.durable == 0):
            return
        this.note_durable(life)
    finish(this, ["--resume-if-any"])


def requeued(this):
    """Starts the same command each time, and kills it at any instant, also during its start."""
    for _ in range(3):
        life = this.draw.choice([kill_at_random, kill_at_phase, stop_by_notice])(this, ["--resume-if-any"])
        if not this.judge(life, may_refuse=this.durable == 0):
            break
        this.note_durable(life)
    if not finish(this, ["--resume-if-any"], may_refuse=this.durable == 0):
        finish(this, ["--fresh"], may_start_anew=True)


def move_away(this, device):
    """Simulates a drive that is not mounted; its mount point may exist."""
    device.rename(device.with_suffix(".away"))
    if this.draw.random() < 0.5:
        device.mkdir()
    this.commands.append(f"mv {device.name} {device.name}.away" + (f"; mkdir {device.name}" if device.exists() else ""))


def move_back(this, device):
    shutil.rmtree(device, ignore_errors=True)
    device.with_suffix(".away").rename(device)
    this.commands.append(f"rm -rf {device.name}; mv {device.name}.away {device.name}")


def lose_device(this, is_moved):
    # Something of the run must be left, or nobody could know that it existed.
    if this.layout.ranks == this.layout.per_rank == 1:
        this.layout = Layout(1, 2, this.layout.tiles)
    interrupted(this)
    device = this.draw.choice([folder for folder in this.folders if any(folder.iterdir())])
    move_away(this, device)
    what = f"the folder {device.name} was {'moved away' if is_moved else 'emptied'}"
    this.faults["a device's folder moved away" if is_moved else "a device's folder emptied"] += 1
    if not this.has_trace():
        return
    if not is_moved:
        resume_damaged(this, this.durable, what)
        return
    for flags in this.draw.sample(RESUMES, this.draw.randrange(1, 3)):
        life = this.life(flags)
        if this.judge(life, may_refuse=True, where=f" after {what}"):
            this.check_masters(life)
            return
    move_back(this, device)
    finish(this)


def moved_away(this):
    lose_device(this, is_moved=True)


def emptied(this):
    lose_device(this, is_moved=False)


def harmed_manifest(this):
    interrupted(this)
    path = this.draw.choice(sorted(path for folder in this.folders for path in folder.glob("rank-*.manifest")))
    how = this.draw.choice(["torn", "flipped"])
    harm(this, path, how)
    this.faults[f"{how} manifest"] += 1
    resume_damaged(this, this.durable, f"the manifest of a rank was {how}")


def harmed_state(this):
    this.layout = dataclasses.replace(this.layout, tiles=1)
    interrupted(this)
    files = [path for folder in this.folders for path in folder.glob("rank-*.state") if path.stat().st_size]
    path, part = this.draw.choice(sorted(files)), this.draw.choice(["header", "body", "all"])
    if part == "all":
        this.faults["torn state file"] += 1
        harm(this, path, "torn")
        resume_damaged(this, this.durable - 1, "a state file was torn")
        return
    extent = 4096 + 12 * 65536
    place = this.draw.randrange(path.stat().st_size // extent)
    begin = place * extent + (0 if part == "header" else 4096)
    harm(this, path, "flipped", begin, begin + (4096 if part == "header" else extent - 4096))
    this.faults[f"flipped state {part}"] += 1
    if this.has_two_places and place % 2 != this.durable % 2:
        finish(this)  # the previous generation is damaged, but not needed
    else:
        resume_damaged(this, this.durable - 1, f"a state {part} was flipped")


def harmed_checkpoint(this):
    is_needed = this.draw.random() < 0.5
    if is_needed:
        this.settings.update({"csd.durability": "checkpoint"})
    this.settings["checkpoint.every"] = 3
    this.durable = 0
    this.note_durable(kill_at_random(this, steps=this.draw.randrange(8, STEPS - 4)))
    files = sorted(
        path for path in this.checkpoints.glob("step-*.h5") if path.name[:13] == this.newest_checkpoint().name[:13]
    )
    how = this.draw.choice(["torn", "flipped"])
    harm(this, this.draw.choice(files), how)
    this.faults[f"{how} checkpoint"] += 1
    if is_needed:
        resume_damaged(this, this.durable, f"the checkpoint was {how}", has_whole_checkpoint=False)
    else:
        finish(this)


def io_fails(this):
    """EIO or ENOSPC on a read, write, flush or rename, in a first life and then in a resume."""
    for life_flags in ([], *this.draw.choices(RESUMES, k=this.draw.randrange(1, 3))):
        if life_flags and this.draw.random() < 0.5:
            fault = planned_fault(this, ["mid_read"], "fail", most=4)  # of the state that it resumes from
        else:
            phase = this.draw.choice(STORAGE_PHASES)
            fault = planned_fault(this, [phase], "fail" if phase == "mid_read" else this.draw.choice(["fail", "full"]))
        this.faults[f"{'EIO' if 'fail' in fault else 'ENOSPC'} at {fault.split()[1][6:]}"] += 1
        life = this.life(life_flags, fault=fault)
        if life_flags:
            this.judge(life, may_refuse=this.durable == 0)
        elif life.code == 2:
            this.fail("bad refusals", f"an I/O error ended with code 2: {life.reason}")
        elif life.code not in (0, 1):
            this.fail("bad refusals", f"an I/O error ended with code {life.code}: {life.reason}")
        this.note_durable(life)
    if not finish(this, may_refuse=this.durable == 0) and this.durable == 0:
        finish(this, ["--fresh"], may_start_anew=True)


def checkpoint_fails(this):
    """A checkpoint file cannot be written, but the smaller state files can. The previous checkpoint must survive."""
    most_bytes = 2_500_000  # a checkpoint has 3.1 MB, and the state of each device 1.6 MB
    this.layout, this.line = Layout(ranks=1, per_rank=4), dataclasses.replace(this.line, ranks=1)
    this.settings.update({"csd.durability": this.draw.choice(["checkpoint", "step"]), "checkpoint.every": 4})
    this.note_durable(this.life(train__stop_at=this.draw.randrange(2, 8)))
    life = this.life(this.draw.choice(RESUMES), most_file_bytes=most_bytes)
    # Some file systems let files grow beyond RLIMIT_FSIZE.
    is_limited = not any(path.stat().st_size > most_bytes for path in this.checkpoints.glob(f"step-{STEPS:08}*"))
    if is_limited:
        this.faults["a checkpoint that cannot be written"] += 1
    else:
        this.skipped["a checkpoint that cannot be written, because this machine does not limit files"] += 1
    if this.judge(life) and life.code != (1 if is_limited else 0):
        this.fail(
            "bad refusals",
            f"a checkpoint that could {'not ' if is_limited else ''}be written ended with code {life.code}: "
            f"{life.reason}",
        )
    elif is_limited and not re.search(r"Cannot write \S*checkpoints", life.reason):
        this.fail("broken rounds", f"it ended for another reason than its checkpoint: {life.reason}")
    this.note_durable(life)
    finish(this)


def elastic(this, other, what):
    """Resumes from the newest step with another layout, perhaps killed on the way, perhaps back again."""
    interrupted(this)
    this.faults[what] += 1
    old, step = this.layout, this.durable
    flags, is_killed = this.draw.choice(RESUMES), this.draw.random() < 0.4
    was_exact = this.is_exact
    this.is_exact = was_exact and other.ranks == old.ranks
    if is_killed:
        life = this.draw.choice([kill_at_random, kill_at_phase])(this, flags, layout=other)
    else:
        life = this.life(flags, other, train__stop_at=step)
    if not this.judge(life, where=f" on {other} from {old}"):
        this.is_exact = was_exact
        finish(this)
        return
    if (
        not is_killed
        and life.start == step
        and life.summary.get("masters_xxh3") != this.references.of(this.line, step)[1]
    ):
        this.fail("wrong lines", f"{other} has other masters of step {step} than {old}")
    if len(life.losses) >= 2 or not is_killed:
        this.layout = other
        this.note_durable(life)
        if this.draw.random() < 0.3:
            this.layout = old
    else:
        # A step of the new layout may be durable or not.
        this.reached = max([this.reached, *life.losses])
        this.durable = max(this.durable, this.checkpoint_step())
        this.layout = this.draw.choice([old, other])
    if this.draw.random() < 0.3:
        device = this.draw.choice(this.folders)
        move_away(this, device)
        life = this.life(this.draw.choice(RESUMES))
        if this.judge(life, may_refuse=True, where=f" after the folder {device.name} was moved away"):
            this.check_masters(life)
            return
        move_back(this, device)
    finish(this)


def other_ranks(this):
    ranks = this.draw.choice([ranks for ranks in (1, 2, 3, 4) if ranks != this.layout.ranks])
    elastic(this, dataclasses.replace(this.layout, ranks=ranks), "another -n")


def other_devices(this):
    elastic(this, dataclasses.replace(this.layout, per_rank=3 - this.layout.per_rank), "another csd.per_rank")


def other_subgroups(this):
    elastic(this, dataclasses.replace(this.layout, tiles=3 - this.layout.tiles), "another csd.subgroup_tiles")


def other_folders(this):
    """csd.path in another order, or with a folder more or less: state that is not reachable must not be ignored."""
    interrupted(this)
    this.faults["another csd.path"] += 1
    before, paths = (
        this.settings["csd.path"],
        this.draw.choice(['["p1","p0"]', '["p0","p1","p2"]', '["p2","p1"]', '["p0"]']),
    )
    this.settings["csd.path"] = paths
    if "p2" in paths:
        this.folders.append(this.folder / "p2")
    life = this.life(this.draw.choice(RESUMES))
    if this.judge(life, may_refuse=True, where=f" with csd.path={paths}"):
        this.check_masters(life)
    else:
        this.settings["csd.path"] = before
        finish(this)


def rolled_back(this):
    """An older checkpoint begins a new line, and the next resume follows that line."""
    if this.draw.random() < 0.5:
        # The run's own checkpoint, while its state is newer.
        this.settings["checkpoint.every"] = 5
        this.note_durable(kill_at_random(this, steps=this.draw.randrange(8, 18)))
        at, index = this.checkpoint_step(), this.newest_checkpoint().relative_to(this.folder)
    else:
        at = this.draw.randrange(3, 9)
        this.note_durable(this.life(train__stop_at=at))
        shutil.copytree(this.checkpoints, this.folder / "aside")
        this.commands.append(f"cp -r {this.checkpoints.relative_to(this.folder)} aside")
        index = f"aside/step-{at:08}.h5"
        life = this.life(["--resume"], train__stop_at=this.draw.randrange(at + 6, STEPS))
        if not this.judge(life):
            return
        this.note_durable(life)
    this.faults["roll-back"] += 1
    steps = this.draw.randrange(2, max(3, this.durable - at - 1))
    change = this.draw.choice([{"learning_rate": "1e-3"}, {"seed": 2}])
    this.line = dataclasses.replace(this.line, branched_at=at, **change)
    use_another_line(this, at)
    life = kill_at_random(this, ["--from", index], steps=steps, is_named=True)
    if not this.judge(life, at):
        return
    this.note_durable_of_branch(life)
    finish(this)


def second_run_now(this):
    """A second run beside one that holds the folder and is stopped at a step: it is refused and changes nothing."""
    phase = this.draw.choice(["before_commit", "after_commit"])
    running = this.begin_life(
        fault=f"rank={this.draw.randrange(this.layout.ranks)} phase={phase} count={this.draw.randrange(1, STEPS)}"
        " action=stop"
    )
    running.fault = ""  # it continues, so nothing excuses it
    while not running.is_over() and not running.is_held():
        time.sleep(0.004)
    if running.is_over():
        life = this.end_life(running)
        this.fail("bad refusals", f"the first run ended with code {life.code} before it was held: {life.reason}")
        return
    running.send_ranks(signal.SIGSTOP)
    earlier, digest = None, this.digest()
    while digest != earlier:  # a system call may still be going on
        time.sleep(0.2)
        earlier, digest = digest, this.digest()
    this.faults["a second run beside the first"] += 1
    for flags in this.draw.sample(([], ["--fresh"], *RESUMES), 2):
        layout = dataclasses.replace(this.layout, ranks=this.draw.choice([1, 2, this.layout.ranks]))
        other = this.life(flags, layout)
        if other.code != 2 or "in use" not in other.err:
            this.fail("bad refusals", f"beside another run it ended with code {other.code}: {other.reason}")
        elif other.has_changed:
            this.fail("bad refusals", "beside another run a refusal changed the folder")
        else:
            this.refusals += 1
    running.send_ranks(signal.SIGCONT)
    life = this.end_life(running)
    this.judge(life, 0, may_start_anew=True)
    this.check_masters(life)


def second_run_later(this):
    """A run with another seed in the folder of a finished run, without durable steps, and then resumed."""
    life = this.life()
    if life.code != 0:
        this.fail("bad refusals", f"an undisturbed run ended with code {life.code}: {life.reason}")
        return
    this.faults["another run after a finished one"] += 1
    this.line = dataclasses.replace(this.line, seed=2)
    this.settings.update({"csd.durability": this.draw.choice(["checkpoint", "step"]), "checkpoint.every": 4})
    use_another_line(this, 0)
    life = kill_at_random(this, ["--fresh"], steps=this.draw.randrange(6, STEPS - 4), is_named=True)
    this.note_durable_of_branch(life)
    finish(this)


FAULTS = [
    killed,
    killed_in_each_phase,
    requeued,
    moved_away,
    emptied,
    harmed_manifest,
    harmed_state,
    harmed_checkpoint,
    io_fails,
    checkpoint_fails,
    other_ranks,
    other_devices,
    other_subgroups,
    other_folders,
    rolled_back,
    second_run_now,
    second_run_later,
]


def fault_of(seed, number):
    """All faults in turn, in an order drawn from the seed; kills and failing disks come twice."""
    order = [*FAULTS, killed, io_fails]
    random.Random(f"order {seed} {number // len(order)}").shuffle(order)
    return order[number % len(order)]
