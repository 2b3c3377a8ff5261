"""Common parts of the measurements on GPUs: options, runs of the program and JSON lines.

Every finished run is printed as a JSON line with its settings and results, so that an interrupted measurement is still
useful. The table follows at the end and leaves out each run's first step, which allocates. Without --data the text is
made up, which is good enough for speed. State is removed after each run. --smoke runs the same on a tiny model, in
seconds, also without a GPU.
"""

import argparse
import collections
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile

import child_process

BESIDE = pathlib.Path(__file__).resolve().parent
ROOT = BESIDE.parent
SMOKE = {
    "model.layers": 3,
    "model.heads": 2,
    "model.width": 32,
    "model.context": 32,
    "model.vocabulary": 512,
    "train.micro_batch": 1,
    "train.evaluate_batches": 1,
    "csd.subgroup_tiles": 1,
}


def parser(description):
    made = argparse.ArgumentParser(
        description=description + __doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--program", type=pathlib.Path, default=ROOT / "build/gpu/nearstep", help="default: build/gpu/nearstep"
    )
    made.add_argument("--data", nargs="+", help="files or folders of text; default: made up")
    made.add_argument("--json", type=pathlib.Path, help="append the lines of JSON to this file, too")
    made.add_argument(
        "--commit", default=commit(), help="of the program, for the lines of JSON; default: that of this folder"
    )
    made.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of every run; may be given again"
    )
    made.add_argument("--smoke", action="store_true", help="a tiny model and few steps, to see that everything works")
    return made


def commit():
    """The commit that is checked out here; "unknown" in a folder without git."""
    done = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def machine():
    """GPUs, cores and memory of this machine, in words."""
    done = (
        subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
        if shutil.which("nvidia-smi")
        else None
    )
    names = collections.Counter(done.stdout.split("\n")[:-1] if done and done.returncode == 0 else [])
    gpus = ", ".join(f"{count} x {name}" for name, count in names.items()) or "no GPU"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{gpus}; {len(os.sched_getaffinity(0))} cores; {memory:.0f} GiB; Linux {platform.release()}"


def source(arguments):
    """Returns the fields that say where a line of JSON comes from."""
    return {
        "commit": arguments.commit,
        "machine": machine(),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


@contextlib.contextmanager
def limited(gb):
    """The folder of a cgroup with so much memory; None if none is wanted or can be made."""
    for root, name in (
        (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")) if gb else ()
    ):  # versions 2 and 1
        group = pathlib.Path(root, f"nearstep-bench-{os.getpid()}")
        try:
            group.mkdir()
            (group / name).open("r+").write(str(int(gb * 1e9)))  # the kernel makes this file
            yield group
            return
        except OSError:
            pass
        finally:
            with contextlib.suppress(OSError):
                group.rmdir()
    yield None


def work(script, job, label, limit_gb=0, seconds=None, starter=()):
    """Does a job in a process of its own: a script of this folder, which takes it as JSON. `starter`: a command that
    starts several processes of it, of which the first one prints. Returns the line of JSON that it prints last, with
    the limit of its host memory, if `limit_gb` is not 0. Raises Failed if it fails or takes longer."""
    with limited(limit_gb) as group:
        try:
            done = subprocess.run(
                [*(starter or [sys.executable]), BESIDE / script, json.dumps(job)],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=seconds,
                preexec_fn=lambda: child_process.enter(group),
                env=os.environ | ({"TORCHINDUCTOR_COMPILE_THREADS": "1"} if group else {}),
            )  # a compiler per core would take the memory
        except subprocess.TimeoutExpired as over:
            raise Failed(
                f"{label} did not end within {seconds} s: "
                f"{(over.stderr or b'it said nothing').decode(errors='replace').strip()}"
            ) from over
    said = done.stderr.strip().splitlines()
    print("".join(f"{line}\n" for line in said if line.startswith("nearstep")), file=sys.stderr, end="")
    if done.returncode != 0:
        raise Failed(f"{label} ended with {done.returncode}: {said[-1] if said else 'it said nothing'}")
    limit = f"{limit_gb:.2f} GB by {'a cgroup' if group else 'nearstep alone'}" if limit_gb else "none"
    return {"host_limit": limit, **json.loads((done.stdout.strip().splitlines() or ["{}"])[-1])}


def fail(message):
    print(f"{pathlib.Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)


def parse(made):
    arguments = made.parse_args()
    arguments.program = arguments.program.resolve()
    if not arguments.program.is_file():
        fail(
            f"{arguments.program} is not there: run tests/run --gpu or launch/build release nearstep, or give "
            "--program."
        )
    for setting in arguments.set:
        if "=" not in setting:
            fail(f"--set {setting} has no value: write KEY=VALUE.")
    for path in arguments.data or []:
        if not pathlib.Path(path).exists():
            fail(f"{path} is not there: name files or folders of text with --data.")
    return arguments


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def quoted(value):
    """Formats a value for --set. Paths become absolute."""
    value = value.resolve() if isinstance(value, pathlib.Path) else value
    return json.dumps(str(value)) if not isinstance(value, (int, float, bool, list)) else json.dumps(value)


def trained(program, config, settings, *flags, ranks=1, threads=1):
    """The summary of a training that must succeed, and what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        summary = pathlib.Path(folder, "summary.json")
        command = [
            ROOT / "launch/ranks",
            str(ranks),
            pathlib.Path(program).resolve(),
            "train",
            ROOT / config,
            *(f"--set={key}={quoted(value)}" for key, value in settings.items()),
            "--json",
            summary,
            *flags,
        ]
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=dict(os.environ, OMP_NUM_THREADS=str(threads)),
            capture_output=True,
            text=True,
            errors="replace",
        )
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        return json.loads(summary.read_text()), done.stdout


def of_size(gb):
    """The settings of a GPT whose fp32 state has about so many GB: 12 bytes per parameter."""
    width = 512
    layers = max(1, round((gb * 1e9 / 12 - 256 * width) / (12 * width * width)))
    return {
        "model.width": width,
        "model.heads": 8,
        "model.layers": layers,
        "model.context": 32,
        "train.global_batch": 1,
        "train.micro_batch": 1,
        "train.evaluate_batches": 1,
    }


def make_text(path, lines):
    words = "the owner of each tile adds what the ranks send and writes it near its storage ".split()
    path.write_text("\n".join(" ".join(words[(i * 7 + j * j) % len(words)] for j in range(12)) for i in range(lines)))


def text_of(data, folder):
    """Writes one file with all text of the files and folders in `data`, by default of Python's standard library."""
    whole = folder / "text.txt"
    with whole.open("wb") as file:
        for name in map(pathlib.Path, data or [sysconfig.get_path("stdlib")]):
            for path in sorted(name.rglob("*.py")) if name.is_dir() else [name]:
                file.write(path.read_bytes())
    return whole


class Failed(Exception):
    """A run that ended with an error; contains its last message."""


def new_folder(prefix, folder):
    """A new folder in one that the user names, which is made if it is not there."""
    try:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        return pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    except OSError as error:
        fail(f"the folder {folder} cannot be written ({error.strerror}): name another.")


class Runs:
    """Runs the program with a config. State, text and summaries are below `folder` and are removed."""

    def __init__(self, arguments, config, folder, emits=True):
        self.arguments = arguments
        self.emits = emits
        self.config = config
        self.folder = new_folder("gpu-runs-", folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def data(self):
        if self.arguments.data:
            return [str(pathlib.Path(path).resolve()) for path in self.arguments.data]
        text = self.folder / "text.txt"
        if not text.exists():
            make_text(text, 20000)
        return [str(text)]

    def given(self, ranks, settings):
        """The settings of a run, for its line."""
        return {"ranks": ranks, "settings": settings, "set": self.arguments.set, "data": self.arguments.data}

    def earlier(self, label, ranks, settings):
        """The line of the same run in the file of --json, or None."""
        if not self.arguments.json or not self.arguments.json.exists():
            return None
        given = {"run": label, **self.given(ranks, settings)}
        lines = map(json.loads, self.arguments.json.read_text().splitlines())
        return next((line for line in lines if "error" not in line and line.items() >= given.items()), None)

    def train(self, label, ranks, settings, trace=False, gpus=None, cores=None, use=None, limit=None):
        """Runs and prints a training; returns its line. `gpus` and `cores`: those that it may use, if not all. `use`:
        called with the line before the state is removed. `limit`: seconds that it may take."""
        folder = pathlib.Path(tempfile.mkdtemp(prefix=label.replace(" ", "-") + "-", dir=self.folder))
        state = folder / "state"
        summary = folder / "summary.json"
        timeline = folder / "trace.json"
        metrics = folder / "steps.jsonl"
        given = {
            "data.train": self.data(),
            "csd.path": [str(state)],
            "csd.durability": "none",
            "checkpoint.every": 0,
            **settings,
        }
        if self.arguments.smoke:
            given |= SMOKE | {key: settings[key] for key in ("model.layers",) if key in settings}
        command = [
            *(["taskset", "-c", ",".join(map(str, cores))] if cores else []),
            str(ROOT / "launch/ranks"),
            str(ranks),
            str(self.arguments.program),
            "train",
            str(ROOT / self.config),
            *(f"--set={key}={quoted(value)}" for key, value in given.items()),
            *(f"--set={setting}" for setting in self.arguments.set),
            "--json",
            str(summary),
            "--metrics",
            str(metrics),
            *(["--trace", str(timeline)] if trace else []),
        ]
        limited = ["timeout", "--kill-after=20", str(limit)] if limit else []
        done = subprocess.run(
            [*limited, *command],
            capture_output=True,
            text=True,
            cwd=ROOT,
            errors="replace",
            env=child_process.environment_with(gpus),
        )
        line = {"run": label, **self.given(ranks, settings)}
        try:
            if done.returncode != 0:
                said = f"it did not end within {limit} s" if limit and done.returncode == 124 else complaint(done)
                line |= {"exit_code": done.returncode, "error": said}
                raise Failed(f"{label} ended with {done.returncode}: {said}")
            line |= json.loads(summary.read_text())
            line |= of_steps(metrics)
            line["losses"] = [round(loss, 4) for loss in line["losses"]]
            line["steady"] = steady(line, metrics)
            if use:
                use(line)
            if trace:
                line["overlap"] = overlap(timeline, line["seconds"], ranks)
        finally:
            if self.emits:
                emit(self.arguments, line)
            shutil.rmtree(folder, ignore_errors=True)
        return line


def emit(arguments, line):
    """Prints the line as JSON, and appends it to the file of --json."""
    text = json.dumps(line | source(arguments)) + "\n"
    print(text, end="", flush=True)
    if arguments.json:
        with arguments.json.open("a") as file:
            file.write(text)


def raw_rate(program, folder, state, parameters):
    """GB/s at which the program alone reads and writes so much state in the folder, past the page cache.
    Raises Failed.
    """
    rows = pathlib.Path(folder, "rows.json")
    done = subprocess.run(
        [
            program,
            "bench",
            "csd",
            "--path",
            f"{folder}/state",
            "--state",
            state,
            "--parameters",
            str(parameters),
            "--subgroup-tiles",
            "64",
            "--rounds",
            "1",
            "--steps",
            "1",
            "--json",
            rows,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"the drive's rate: {complaint(done)}")
    return next(
        line["gb_s"] for line in map(json.loads, rows.read_text().splitlines()) if line["row"] == f"raw.{state}"
    )


def drive_bytes():
    """Bytes that this process has read from drives, and written to them; zeros where the kernel does not say."""
    try:
        counts = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    except OSError:
        return 0, 0
    return int(counts["read_bytes"]), int(counts["write_bytes"])


def complaint(done):
    """The program's error message, without mpirun's text around it."""
    lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip("- ")]
    return next((line for line in lines if line.startswith("nearstep")), lines[0] if lines else "it said nothing")


def of_steps(metrics):
    """Seconds of each step, and the held-out losses with the steps after which they were measured."""
    steps = [json.loads(text) for text in metrics.read_text().splitlines()]
    return {
        "step_s": [round(step["wall_s"], 4) for step in steps if "phases_s" in step],
        "heldout": [[step["step"], round(step["heldout_loss"], 4)] for step in steps if "heldout_loss" in step],
    }


def steady(line, metrics):
    """Mean phases and wall time of the steps without the first two, which allocate, and what follows from the wall
    time. A step's wall time ends when its update has ended, during the next forward; so the last one, without, is left
    out, too."""
    steps = [json.loads(text) for text in metrics.read_text().splitlines() if "phases_s" in text]
    steps = steps[2:-1] or steps
    phases = {phase: statistics.mean(step["phases_s"][phase] for step in steps) for phase in steps[0]["phases_s"]}
    tokens = line["tokens_per_s"] * line["seconds"] / len(line["losses"])
    rate = tokens / statistics.mean(step["wall_s"] for step in steps)
    found = {"phases_s": phases, "tokens_per_s": rate}
    if line.get("model_flop_utilisation"):
        found["model_flop_utilisation"] = line["model_flop_utilisation"] * rate / line["tokens_per_s"]
    return found


def overlap(timeline, seconds, ranks):
    """Returns from a trace the seconds of work of each lane per second and rank, and of all lanes together; 1 means no
    overlap."""
    busy = collections.Counter()
    for event in json.loads(timeline.read_text())["traceEvents"]:
        if event["ph"] == "X":
            busy[event["cat"]] += event["dur"] / 1e6
    lanes = {lane: total / seconds / ranks for lane, total in busy.items()}
    return {"lanes": lanes, "together": sum(lanes.values())}


def get(line, *keys):
    """line[a][b]..., or None if missing."""
    for key in keys:
        if not isinstance(line, dict) or key not in line:
            return None
        line = line[key]
    return line
