"""The operations of a traced step, with their seconds. Used by cluster/simulate, which finds this and experiment.py."""

import json
import os
import shutil
import statistics
import tomllib

import experiment


def trace_here(run, options):
    """Trains a few steps of the config with --trace. Returns the operations of a step, medians over steps."""
    trace = run.folder / "trace.json"
    config = tomllib.loads((experiment.ROOT / options.config).read_text())["model"]
    keys = {
        "data.train": json.dumps(str(run.text)),
        "csd.path": json.dumps(str(run.state)),
        "csd.per_rank": 1,
        "csd.subgroup_tiles": 8,
        "train.steps": 7,
        "model.context": 64,
        "train.global_batch": options.rows,
        "train.micro_batch": options.rows,
        "mode": "su+o+c",
        "compress.codec": "q4",
    }
    try:
        out = run.call(
            options.program, "train", options.config, "--site", options.site, "--trace", trace, *run.settings(keys)
        )
    finally:
        shutil.rmtree(run.state, ignore_errors=True)
    spans = [
        event
        for event in json.loads(trace.read_text())["traceEvents"]
        if event["ph"] == "X" and 3 <= event["args"]["step"] <= 6
    ]

    def seconds(name, kind, number=None):
        return statistics.median(
            span["dur"] * 1e-6
            for span in spans
            if span["name"] == name and kind in span["args"] and number in (None, span["args"][kind])
        )

    width, blocks = config["width"], 1 + max(span["args"]["block"] for span in spans if span["name"] == "forward")
    sizes = [(config["vocabulary"] + 64) * width, *[12 * width**2 + 13 * width] * (blocks - 2), 2 * width]
    return {
        "kind": "operations of a traced step",
        "commit": run.call(options.program, "--version").split()[-1],
        "cores": os.cpu_count(),
        "config": options.config,
        "site": options.site,
        "rows": options.rows,
        "context": 64,
        "settings": keys["mode"] + ", q4",
        "line": next(line for line in out.splitlines() if line.startswith("speed:")),
        "device": {
            "parameters": 8 * 65536,
            **{name: seconds(name, "subgroup") for name in ("read", "update", "write")},
        },
        "blocks": [
            {
                "parameters": size,
                "forward": seconds("forward", "block", block),
                "backward": seconds("backward", "block", block),
                "gradient": seconds("gradient", "block", block),
            }
            for block, size in enumerate(sizes)
        ],
    }


def stretched(operations, layers):
    """Returns the blocks with the trace's median layer `layers` times, between the first and the last block."""
    first, *middle, last = operations["blocks"]
    layer = {key: statistics.median(block[key] for block in middle) for key in first}
    return [first, *[layer] * layers, last]
