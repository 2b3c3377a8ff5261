"""Common parts of the experiments: runs of nearstep, rows, a table, and one JSON file each, of which `nearstep report`
draws plots.

A row is a dictionary of plain values. Its origin says where the values come from: measured, shaped (measured on links
limited to a site's rates), modelled (nearstep plan's formulas), simulated (SimGrid) or published (by others). A key
that begins with modelled_, simulated_ or published_ has that origin in any row.
"""

import argparse
import atexit
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import tomllib

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import gpu_runs  # noqa: E402
import markdown_table  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
ORIGINS = ("modelled", "simulated", "published")
# All of our methods at once: narrow state, 4-bit gradients, exact deltas of new parameters, overlapped transfers.
PAPER = "su+o+c:compress.codec=topk"
OURS = "su+o+c:csd.state=compact:compress.codec=q4:gather.codec=delta"


def refuse(sentence):
    print(f"{pathlib.Path(sys.argv[0]).name}: {sentence}", file=sys.stderr)
    sys.exit(2)


def arguments_of(text, steps=0):
    """A parser for the options of every experiment, and of one that compares runs of so many steps; `text` is the
    experiment's docstring.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    name = pathlib.Path(sys.argv[0]).name
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        default=ROOT / "runs/experiments",
        help=f"folder for {name}.json (default: runs/experiments)",
    )
    parser.add_argument(
        "--lines",
        type=pathlib.Path,
        help="append a line of JSON for each row to this file, as docs/results/data has them",
    )
    parser.add_argument(
        "--commit", default=gpu_runs.commit(), help="of the program, for --lines; default: that of this folder"
    )
    parser.add_argument("--quick", action="store_true", help="the smallest sizes that show all parts work")
    parser.add_argument("--text", type=pathlib.Path, help="text to train on (default: made up)")
    parser.add_argument(
        "--state",
        type=pathlib.Path,
        help="folder for the devices' files (default: /dev/shm where it has room, else below --out)",
    )
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/release/nearstep")
    parser.add_argument("--timeout", type=int, default=3600, help="seconds that one run may take (default: 3600)")
    if steps:
        parser.add_argument(
            "--site",
            default="cluster/smartssd-node-scaled",
            help="its links, and its prices (default: cluster/smartssd-node-scaled)",
        )
        parser.add_argument("--config", help="default: configs/links.toml")
        parser.add_argument("--steps", type=int, help=f"steps of each run, the first not timed (default: {steps})")
        parser.set_defaults(usual_steps=steps)
    return parser


def numbers(text):
    """Parses positive whole numbers, separated by commas."""
    try:
        values = [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is no list of numbers, as in 1,2,4") from None
    if not values or min(values) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' has a number below 1")
    return values


def site_of(folder):
    """The site file as a dictionary."""
    try:
        return tomllib.loads((ROOT / folder / "site.toml").read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        refuse(f"the site {folder} cannot be read ({error}): name a folder with a site.toml.")


class Experiment:
    """Runs an experiment, which ends in a JSON file."""

    def __init__(self, options, title, least_room_gb=3):
        self.options = options
        if "usual_steps" in options:
            options.config = options.config or ("configs/tiny.toml" if options.quick else "configs/links.toml")
            options.steps = options.steps or (2 if options.quick else options.usual_steps)
        self.name = pathlib.Path(sys.argv[0]).name
        self.title = title
        self.commit = self.config = self.site = None
        if not os.access(options.program, os.X_OK):
            refuse(f"there is no program {options.program}: build it with launch/build release nearstep.")
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f"{self.name}.work-", dir=options.out))
        except OSError as error:
            refuse(f"{options.out} cannot be made ({error}): name another folder with --out.")
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        try:
            if options.lines:
                options.lines.open("a").close()
        except OSError as error:
            refuse(
                f"--lines {options.lines} cannot be written ({error.strerror}): name a file in a folder that is there."
            )
        self.text = options.text or self.make_text()
        self.state = options.state or self.find_room(least_room_gb)

    def find_room(self, room_gb):
        memory = pathlib.Path("/dev/shm")
        if memory.is_dir() and shutil.disk_usage(memory).free > room_gb * 1e9:
            return memory / f"nearstep-{self.name}-{os.getpid()}"
        return self.folder / "state"

    def make_text(self):
        gpu_runs.make_text(self.folder / "text.txt", 3000)
        return self.folder / "text.txt"

    def call(self, *command):
        """Runs a command that must succeed; returns its standard output."""
        words = [str(word) for word in command]
        print("+", " ".join(words), file=sys.stderr, flush=True)
        environment = dict(
            os.environ, NEARSTEP_TIMEOUT=str(self.options.timeout), NEARSTEP_PROGRAM=str(self.options.program)
        )
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=environment,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            refuse(
                f"'{' '.join(words)}' ended with code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            )
        return done.stdout

    def settings(self, keys):
        return [f"--set={key}={value}" for key, value in keys.items()]

    def compare(self, modes, devices, ranks=1, keys=None):
        """Runs nearstep compare; returns its summaries."""
        out, config, site = self.folder / "compare.json", self.options.config, self.options.site
        keys = {"data.train": json.dumps(str(self.text)), "csd.path": json.dumps(str(self.state)), **(keys or {})}
        try:
            self.call(
                "launch/ranks",
                ranks,
                self.options.program,
                "compare",
                config,
                "--site",
                site,
                "--modes",
                ",".join(modes),
                "--devices",
                ",".join(map(str, devices)),
                "--steps",
                self.options.steps,
                "--json",
                out,
                *self.settings(keys),
            )
        finally:
            if not self.options.state:
                shutil.rmtree(self.state, ignore_errors=True)
        return self.note(json.loads(out.read_text()), config, site)

    def plan(self, config, site, nodes, csds=None, keys=None, words=()):
        """Runs nearstep plan; returns its rows, which are modelled."""
        out = self.folder / "plan.json"
        self.call(
            self.options.program,
            "plan",
            config,
            "--site",
            site,
            "--nodes",
            ",".join(map(str, nodes)),
            *(["--csds", ",".join(map(str, csds))] if csds else []),
            "--json",
            out,
            *words,
            *self.settings(keys or {}),
        )
        rows = json.loads(out.read_text())
        self.config, self.site = str(config), str(site)
        return rows

    def note(self, summaries, config, site):
        self.commit, self.config, self.site = summaries[0]["commit"], str(config), str(site)
        return summaries

    def finish(self, rows, columns, plots, notes):
        """Prints the table and writes JSON. columns: (key, heading, format) each; plots: {title, x, y: keys, series:
        key, x_name, y_name, log: bool} each.
        """
        commit = self.commit or self.call(self.options.program, "--version").split()[-1]
        text = table(rows, columns)
        print(f"{self.title}\n{text}" + "".join(f"\n{note}" for note in notes))
        result = {
            "kind": "nearstep experiment",
            "experiment": self.name,
            "title": self.title,
            "commit": commit,
            "config": self.config,
            "site": self.site,
            "cores": os.cpu_count(),
            "command": " ".join(sys.argv),
            "quick": self.options.quick,
            "notes": notes,
            "rows": rows,
            "plots": plots,
            "columns": [{"key": key, "name": name, "format": form} for key, name, form in columns],
        }
        path = self.options.out / f"{self.name}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        if self.options.lines:
            with self.options.lines.open("a") as file:
                for row in rows:
                    about = {
                        "experiment": self.name,
                        "config": self.config,
                        "site": self.site,
                        "command": result["command"],
                    }
                    file.write(json.dumps({**about, **row, **gpu_runs.source(self.options)}) + "\n")
        print(f"written: {path}")


def origin_of(key, row):
    return next((origin for origin in ORIGINS if key.startswith(origin + "_")), row["origin"])


def table(rows, columns):
    """Formats the table, with shaped numbers in {}, modelled ones in () and simulated ones in []."""
    brackets = {
        "measured": ("", ""),
        "shaped": ("{", "}"),
        "modelled": ("(", ")"),
        "simulated": ("[", "]"),
        "published": ("<", ">"),
    }

    def cell(row, key, form):
        value = row.get(key)
        if value is None:
            return "-"
        if not isinstance(value, float):
            return str(value)
        left, right = brackets[origin_of(key, row)]
        return left + format(value, form) + right

    lines = [[name for _, name, _ in columns], *([cell(row, key, form) for key, _, form in columns] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    text = "\n".join("  ".join(word.rjust(width) for word, width in zip(line, widths)) for line in lines)
    return text + "\n{measured on shaped links}, (modelled), [simulated], <published by others>, the rest measured"


def markdown(head, rows):
    return markdown_table.table(head, rows).rstrip("\n")


def wrapped(paragraph):
    return markdown_table.wrapped(paragraph)


def short(column):
    """ "su+o+c:csd.state=compact" as "su+o+c compact"; all of our methods as "ours"."""
    if column == OURS:
        return "ours"
    mode, *settings = column.split(":")
    return " ".join([mode, *(setting.split("=", 1)[-1] for setting in settings)])


def origin_of_run(summary):
    return "shaped" if "links" in summary else "measured"


def rows_of(summaries):
    """A row for each summary of compare, with the expected times at the links' rates."""
    rows = []
    for summary in summaries:
        measured, expected = summary["phases_s"], summary.get("predicted_s", {})
        rows.append(
            {
                "origin": origin_of_run(summary),
                "column": short(summary["column"]),
                "devices": summary["devices"],
                "ranks": summary["ranks"],
                "state": summary["state"],
                "codec": summary["codec"],
                "forward_s": measured["forward"],
                "backward_s": measured["backward"],
                "update_s": measured["update"],
                "step_s": measured["total"],
                "over_base": summary["speedup_over_base"],
                "over_first_base": summary["speedup_over_first_base"],
                "modelled_update_s": expected.get("update"),
                "modelled_step_s": expected.get("total"),
                "modelled_over_base": summary.get("predicted_speedup_over_base"),
                "volume": summary["compress"]["volume_share_of_dense"],
                "parameters": summary["parameters"],
                "each_step_s": summary.get("each_step_s"),
                "loss": summary["losses"][-1],
                "tokens": round(summary["tokens_per_s"] * summary["seconds"] / len(summary["losses"])),
            }
        )
    first = next((row for row in rows if row["column"] == "base"), None)
    for row in rows:
        if first and row["modelled_step_s"]:
            row["modelled_over_first_base"] = first["modelled_step_s"] / row["modelled_step_s"]
    return rows


# Columns for these rows.
STEP_COLUMNS = [
    ("column", "column", ""),
    ("devices", "devices", ""),
    ("forward_s", "forward s", ".3f"),
    ("backward_s", "backward s", ".3f"),
    ("update_s", "update s", ".3f"),
    ("modelled_update_s", "expected", ".3f"),
    ("step_s", "step s", ".3f"),
    ("modelled_step_s", "expected", ".3f"),
    ("over_base", "over base", ".2f"),
    ("modelled_over_base", "expected", ".2f"),
    ("over_first_base", "over first base", ".2f"),
]
