"""Checks that docs/configuration.md has every key as the program describes it; with --write, writes the page.

configuration.py PROGRAM ROOT [--write]
"""

import pathlib
import re
import subprocess
import sys

SECTIONS = {
    "": "The run",
    "model": "The model",
    "data": "Data",
    "train": "Training",
    "csd": "Devices and their state",
    "compress": "Gradients on their way",
    "gather": "New parameters on their way",
    "placement": "Placement over ranks and nodes",
    "exchange": "Exchange between ranks",
    "checkpoint": "Checkpoints",
}
OF_SITE = {
    "csd": "Kind and ratings of devices",
    "link": "Links",
    "plan": "What the planner knows of the hardware",
    "hosts": "Hosts",
    "site": "The site",
}
HEAD = """# Configuration
Every key of a config and of a site, as `nearstep train --help` describes them. `tests/architecture/configuration.py
PROGRAM . --write` writes this page, and a test compares it with the program.

A config is a TOML file. A [site](cluster.md) sets the keys of the machine: of the config's keys `csd.per_rank`, `path`,
`speed`, `tiers`, `slots` and `io`, `checkpoint.path`, `model.device`, `gpu_memory_gb` and `activations`, and those that
belong [to it alone](#keys-of-a-site). A config wins over the site, and `--set KEY=VALUE` over both. An unknown key, a
wrong type, a line break in a name or a value out of range ends the run with one sentence and code 2 before anything is
written. From Python, keys of the engine are [arguments of the optimizer](pytorch.md) or go into `config={...}`.
"""


def tables_of(program):
    """(name, type, unit, default, meaning) of each key: those of a config, and those of a site alone."""
    shown = subprocess.run([program, "train", "--help"], capture_output=True, text=True, check=True).stdout
    tables = shown.split("Keys of a config (key, type, unit, default, meaning):\n")[1].split("Keys of a site alone:\n")
    return [
        [re.split(r" {2,}", line.strip(), maxsplit=4) for line in table.splitlines() if line.strip()]
        for table in tables
    ]


def sections_of(keys, titles, level):
    text, section = "", None
    for name, kind, unit, default, meaning in keys:
        here = name.partition(".")[0] if "." in name else ""
        if here != section:
            section = here
            text += f"\n{level} {titles[here]}\n| key | type | unit | default | meaning |\n|---|---|---|---|---|\n"
        row = [f"`{name}`", re.sub(r"^an? ", "", kind), "" if unit == "-" else unit, f"`{default}`", meaning]
        text += "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n"
    return text


def page_of(tables):
    config, site = tables
    return HEAD + sections_of(config, SECTIONS, "##") + "\n## Keys of a site\n" + sections_of(site, OF_SITE, "###")


def main():
    program, root = sys.argv[1], pathlib.Path(sys.argv[2])
    tables = tables_of(program)
    page = root / "docs/configuration.md"
    if "--write" in sys.argv:
        page.write_text(page_of(tables))
    if page.read_text() != page_of(tables):
        sys.exit(
            f"docs/configuration.md does not describe the program's keys: type {sys.argv[0]} {program} {root} --write."
        )
    print(" and ".join(f"{len(table)} keys of a {of}" for table, of in zip(tables, ("config", "site alone"))))


main()
