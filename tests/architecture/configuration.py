"""Checks that docs/configuration.md has every key as the program describes it; with --write, writes the page.

    configuration.py PROGRAM ROOT [--write]
"""
import pathlib
import re
import subprocess
import sys

SECTIONS = {
    "": "The run", "model": "The model", "data": "Data", "train": "Training", "csd": "Devices and their state", "compress": "Gradients on their way",
    "gather": "New parameters on their way", "placement": "Placement over ranks and nodes", "exchange": "Exchange between ranks",
    "checkpoint": "Checkpoints", "link": "Shaped links", "plan": "What the planner knows of the hardware", "hosts": "Hosts", "site": "The site",
}
HEAD = """# Configuration
Every key of a config file, as `nearstep train --help` describes it. `tests/architecture/configuration.py PROGRAM . --write` writes this page, and a test compares it with the program.

A config is a TOML file. `--set KEY=VALUE` overrides a key, and a [site](cluster.md) sets those of the machine. An unknown key, a wrong type, a line break in a name or a value out of range ends the run with one sentence and
code 2 before anything is written. From Python, keys of the engine are [arguments of the optimizer](pytorch.md) or go into `config={...}`.
"""


def keys_of(program):
    """(name, type, unit, default, meaning) of each key."""
    shown = subprocess.run([program, "train", "--help"], capture_output=True, text=True, check=True).stdout
    lines = shown.split("Keys of a config (key, type, unit, default, meaning):\n")[1].splitlines()
    return [re.split(r" {2,}", line.strip(), maxsplit=4) for line in lines if line.strip()]


def page_of(keys):
    page, section = HEAD, None
    for name, kind, unit, default, meaning in keys:
        here = name.rpartition(".")[0]
        if here != section:
            section = here
            page += f"\n## {SECTIONS[here]}\n| key | type | unit | default | meaning |\n|---|---|---|---|---|\n"
        row = [f"`{name}`", re.sub(r"^an? ", "", kind), "" if unit == "-" else unit, f"`{default}`", meaning]
        page += "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n"
    return page


def main():
    program, root = sys.argv[1], pathlib.Path(sys.argv[2])
    keys = keys_of(program)
    page = root / "docs/configuration.md"
    if "--write" in sys.argv:
        page.write_text(page_of(keys))
    if page.read_text() != page_of(keys):
        sys.exit(f"docs/configuration.md does not describe the program's {len(keys)} keys: type {sys.argv[0]} {program} {root} --write.")
    print(f"{len(keys)} keys")


main()
