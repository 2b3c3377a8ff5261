"""Reads the lines of docs/results/data, and says where they come from. Used by bench/tables and its modules of
tables."""

import json
import pathlib
import statistics
import sys


ROOT = pathlib.Path(__file__).resolve().parents[1]
DATA = ROOT / "docs/results/data"
UNSTEADY = 2  # first steps, which compile and allocate
# Files of lines that were measured at another commit than `large`, because they measure later work. A file leaves the
# list when all are measured again.
LATER = "large_later"
OTHER_COMMITS = {
    LATER,
    "restart_texts",
    "restart_ranks",
    "fsdp2",
    "several",
    "several_later",
    "several_ddp",
    "half_host",
    "in_gpu",
    "stores_split",
    "stores_whole",
    "dit",
    "one_h200",
    "deepspeed_7b",
    "fp8",
    "fp8_later",
    "models",
    "models_later",
    "one_place",
    "one_place_base",
    "power_cuts",
    "sizes",
    "host_128",
    "less_host",
    "less_host_later",
    "pasted",
    "planned",
    "killed",
    "killed_7b",
    "logs",
    "export",
}
# Lines of losses alone, whose machine is not asked for: the masters of a run are the same bits on an H100 and an H200.
# Likewise files of rows that are compared with nothing, each with its machine.
OF_SEVERAL_MACHINES = {"gpt2", "quarter"}


def read(name):
    """All lines, which are of one commit and one machine."""
    lines = [json.loads(text) for text in (DATA / f"{name}.jsonl").read_text().splitlines()]
    for key in ("commit",) if name in OF_SEVERAL_MACHINES else ("commit", "machine"):
        if len({line[key] for line in lines}) != 1:
            sys.exit(f"tables: the lines of {name} are not of one {key}: measure them again in one run.")
    return lines


def check_commits():
    commits = {file.stem: read(file.stem)[0]["commit"] for file in DATA.glob("*.jsonl")}
    others = {name for name, commit in commits.items() if commit != commits["large"]}
    if others != OTHER_COMMITS:
        sys.exit(
            f"tables: OTHER_COMMITS has to be {', '.join(sorted(others)) or 'empty'}: these lines are of another "
            f"commit than those of large, {commits['large']}."
        )


def lines_of(name):
    """The last line of each row."""
    return {line["row"]: line for line in read(name)}


def origin(line, *others):
    return (
        f"Of commit {line['commit']}, {line['date'][:10]}, "
        f"{'; and '.join(dict.fromkeys(one['machine'] for one in (line, *others)))}"
    )


def steady(line):
    """Without the last step of the program's own networks: a step's time ends with the next forward."""
    return line["seconds"][UNSTEADY : -1 if line["row"].startswith("own") else None]


def seconds(line):
    values = steady(line)
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def optional(value, form):
    return "-" if not value else format(value, form)


def linear(name, row, alone):
    """The speed on several GPUs over so many times that on one, whose lines are those of `alone`."""
    line = lines_of(name)[row]
    return line["tokens_per_s"] / line["settings"]["gpus"] / lines_of(alone)[row]["tokens_per_s"]


def over(name, row, beside, key="tokens_per_s"):
    found = lines_of(name)
    return found[row][key] / found[beside][key]


def value(name, row, key):
    return lines_of(name)[row][key]
