"""Runs that show how a setting affects learning, from scratch and fine-tuned, over several seeds.

From scratch: a byte-level GPT with 10.8 million parameters (bf16), AdamW, peak 1e-3, trained on --train, judged on
--valid. Fine-tuned: every setting continues from the first setting's checkpoint of the same seed, on --tune at a
constant 2e-5, judged on its held-out 10 %. A run has one rank with one thread, and the GPU if there is one; --at-once
runs go in parallel. Each finished seed is printed and written, so that an interrupted measurement is still useful.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = {"model.layers": 6, "model.heads": 6, "model.width": 384, "model.context": 256, "model.dtype": "bf16",
         "train.global_batch": 32, "train.micro_batch": 32, "train.evaluate_batches": 8, "csd.subgroup_tiles": 4,
         "csd.durability": "checkpoint"}


def parse(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", help="build/release/nearstep")
    for option in ("--train", "--valid", "--tune"):
        parser.add_argument(option, required=True, help="a file of text")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--tune-steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--folder", help="where state lies during the runs, as in /dev/shm; default: a temporary folder")
    parser.add_argument("--json", help="write the rows to this file")
    return parser.parse_args()


def run(arguments, folder, name, settings, *flags):
    """Runs the program; returns the summary. The state goes to `folder`/`name`."""
    summary = folder / f"{name}.json"
    settings = {**MODEL, **settings, "csd.path": f'"{folder / name}"'}
    command = [str(ROOT / "launch/ranks"), "1", arguments.program, "train", str(ROOT / "configs/quickstart.toml"),
               *(f"--set={key}={value}" for key, value in settings.items()), "--json", str(summary), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    if done.returncode != 0:
        sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(summary.read_text())


def quoted(text):
    return json.dumps(str(text))


def spread(losses):
    """Mean, and in brackets largest minus smallest."""
    return f"{statistics.mean(losses):.4f} ({max(losses) - min(losses):.4f})"


def measure(arguments, settings_of, columns):
    """`settings_of`: settings by label; fine-tuning starts from the first. `columns(summary)`: further cells."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="quality-", dir=arguments.folder))
    labels = list(settings_of)
    rows = {label: {"label": label, "scratch": [], "tuned": []} for label in labels}

    def scratch(job):
        label, seed = job
        return run(arguments, folder, f"scratch-{labels.index(label)}-{seed}", {
            **settings_of[label], "data.train": quoted(arguments.train), "data.valid": quoted(arguments.valid),
            "train.seed": seed, "train.steps": arguments.steps, "train.learning_rate": 1e-3})

    def tuned(job):
        label, seed, checkpoint = job
        return run(arguments, folder, f"tuned-{labels.index(label)}-{seed}", {
            **settings_of[label], "data.train": quoted(arguments.tune), "data.valid_share": 0.1, "train.seed": seed,
            "train.steps": arguments.steps + arguments.tune_steps, "train.learning_rate": 2e-5,
            "train.final_rate_share": 1, "train.warmup_steps": 0}, "--from", checkpoint)

    try:
        for seed in range(1, arguments.seeds + 1):
            with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
                first = list(pool.map(scratch, [(label, seed) for label in labels]))
                second = list(pool.map(tuned, [(label, seed, first[0]["checkpoint"]) for label in labels]))
            print(f"{first[0]['parameters'] / 1e6:.1f} M parameters, {arguments.steps} and {arguments.tune_steps} steps, "
                  f"{seed} seeds, commit {first[0]['commit']}: held-out nats per byte, mean (spread)")
            for label, one, other in zip(labels, first, second):
                row = rows[label]
                row["scratch"].append(one["heldout_loss"])
                row["tuned"].append(other["heldout_loss"])
                row.update({key: one[key] for key in ("parameters", "commit")})
                cells = columns(one)
                row.update(cells)
                print("|", " | ".join([label, *(f"{cell:.3g}" for cell in cells.values()), spread(row["scratch"]),
                                       spread(row["tuned"])]), "|", flush=True)
            if arguments.json:
                pathlib.Path(arguments.json).write_text(json.dumps(list(rows.values()), indent=2) + "\n")
            for kept in folder.iterdir():
                shutil.rmtree(kept) if kept.is_dir() else kept.unlink()
    finally:
        shutil.rmtree(folder)
