"""Lives of a Round that several faults of restart_campaign share, and what the user does after a refusal."""

import signal
import time
from restart_round import STEPS, lines_of

RESUMES = (["--resume"], ["--resume-if-any"])
PHASES = {
    "after_scatter": 40,
    "after_gradients": 20,
    "mid_read": 40,
    "mid_write": 60,
    "before_commit": 20,
    "before_flush": 40,
    "after_flush": 40,
    "before_rename": 20,
    "after_rename": 20,
    "after_commit": 20,
    "mid_checkpoint": 4,
    "before_checkpoint_index": 3,
    "after_checkpoint_index": 3,
}
STORAGE_PHASES = ("mid_read", "mid_write", "before_flush", "after_flush", "before_rename", "after_rename")


def planned_fault(this, phases, action, most=None, ranks=None):
    phase = this.draw.choice(list(phases))
    count = this.draw.randrange(1, 1 + (most or PHASES[phase]))
    return f"rank={this.draw.randrange(ranks or this.layout.ranks)} phase={phase} count={count} action={action}"


def kill_at_random(this, flags=(), steps=None, how=None, is_named=False, layout=None, **settings):
    """A life that is killed, all ranks or one, soon after it computed `steps` steps, or any time after its start."""
    how = how or this.draw.choice(["one", "all"])
    this.faults[f"kill -9 of {'a rank' if how == 'one' else 'all'}"] += 1
    running = this.begin_life(flags, layout, **settings)
    metrics = this.folder / f"life-{running.number}.jsonl"
    if steps is None:
        until = time.monotonic() + this.draw.uniform(0, 1.5)
        while not running.is_over() and time.monotonic() < until:
            time.sleep(0.005)
    else:
        while not running.is_over() and len(lines_of(metrics)) < steps:
            time.sleep(0.004)
        time.sleep(this.draw.uniform(0, 0.03))
    running.fault = "kill"
    running.kill(how, this.draw.random())
    return this.end_life(running, is_named)


def kill_at_phase(this, flags=(), phases=PHASES, layout=None, most=None, **settings):
    this.faults["kill at a phase"] += 1
    fault = planned_fault(this, phases, "kill", most, (layout or this.layout).ranks)
    return this.life(flags, layout, fault=fault, **settings)


def stop_by_notice(this, flags=()):
    """A life whose ranks get a notice to stop, as from a batch system: it ends with code 75 after the current step."""
    this.faults["a notice to stop"] += 1
    running = this.begin_life(flags)
    metrics = this.folder / f"life-{running.number}.jsonl"
    steps = this.draw.randrange(1, 8)
    while not running.is_over() and len(lines_of(metrics)) < steps:
        time.sleep(0.004)
    running.send_ranks(signal.SIGUSR1)
    running.fault = "notice"
    life = this.end_life(running)
    if life.code not in (0, 75) and not (life.code == 2 and flags):
        this.fail("bad refusals", f"after a notice to stop it ended with code {life.code}: {life.reason}")
    return life


def interrupted(this, **settings):
    """A first life of some steps."""
    if this.draw.random() < 0.5:
        life = kill_at_random(this, steps=this.draw.randrange(4, STEPS - 6), **settings)
    else:
        this.faults["kill at a phase"] += 1
        fault = (
            f"rank={this.draw.randrange(this.layout.ranks)} "
            f"phase={this.draw.choice(['after_commit', 'before_commit', 'after_rename'])}"
            f" count={this.draw.randrange(6, STEPS - 4)}"
        )
        life = this.life(fault=fault, **settings)
    this.note_durable(life)
    return life


def finish(this, flags=None, may_refuse=False, **options):
    """Resumes to the last step without a fault, and expects the bits of the undisturbed run."""
    life = this.life(flags or this.draw.choice(RESUMES))
    has_gone_on = this.judge(life, may_refuse=may_refuse, **options)
    if has_gone_on:
        this.note_durable(life)
        this.check_masters(life)
    return has_gone_on


def use_another_line(this, at):
    """The user goes back: from here on the line that he named counts."""
    this.durable = this.reached = at


def go_on_after_refusal(this, life, index):
    """Continues in a way that the refusal names: from a whole checkpoint if one is left, or anew."""
    if index and this.draw.random() < 0.7:
        way, start = ["--from", index.relative_to(this.folder)], this.checkpoint_step()
    else:
        way, start = ["--fresh"], 0
    if way[0] not in life.err:
        this.fail("bad refusals", f"{way[0]} goes on, and the refusal does not name it: {life.reason}")
    use_another_line(this, start)
    life = this.life(way, is_named=True)
    if life.code != 0 or life.start != start:
        this.fail("bad refusals", f"{way[0]} ended with code {life.code} from step {life.start}: {life.reason}")
    this.check_masters(life)


def resume_damaged(this, least, what, has_whole_checkpoint=True):
    """The newest step may be gone: the run resumes from an equally new one, or refuses and says how to continue."""
    life = this.life(this.draw.choice(RESUMES))
    if this.judge(life, least, may_refuse=True, where=f" after {what}"):
        this.check_masters(life)
        if life.start is not None and life.start < this.durable and f"step {this.durable}" not in life.out:
            this.fail(
                "bad refusals",
                f"it went back from step {this.durable} to {life.start} after {what}, and did not say so",
            )
    elif life.code == 2:
        go_on_after_refusal(this, life, this.newest_checkpoint() if has_whole_checkpoint else None)
