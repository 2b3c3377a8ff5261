"""Tables of products in float8, of other models, and of single means. Used by bench/tables."""

import markdown_table
from table_lines import lines_of, optional, origin, read, seconds, steady


FLOAT8 = {
    "memory-fp8-7b": "PyTorch's fused AdamW in memory, bf16 moments",
    "nearstep-fp8-7b-all": "nearstep, compact state, q4 gradients, all of the GPU",
    "nearstep-fp8-7b": "nearstep, compact state, q4 gradients, 60 GB of the GPU",
    "nearstep-fp8-7b-22gb": "nearstep, compact state, q4 gradients, layers streamed through at most 22 GB",
    "nearstep-fp8-7b-24gb": "nearstep, compact state, q4 gradients, layers streamed through at most 24 GB",
}


def recipe_and_rows(line):
    """Returns the settings that compared rows share: the float8 recipe and the rows of a micro-batch."""
    return line["settings"]["float8"][0], line["settings"]["micro_batch"]


def float8_in_memory(name):
    return {recipe_and_rows(line): line for line in read(name) if line["row"].startswith("memory")}


def float8(name):
    """6.7e9 parameters whose layers' products are in float8; a row has lines of several recipes."""
    lines, in_memory = read(name), float8_in_memory(name)
    common = min(len(line["losses"]) for line in lines)
    return (
        markdown_table.table(
            [
                "row",
                "recipe",
                "rows of a micro-batch",
                "steps",
                "seconds of a step: median (least to most)",
                "tokens/s",
                "of in memory",
                "GPU memory, GB: allocated (reserved)",
                "host memory, GB",
                f"loss of step {common}",
            ],
            [
                [
                    FLOAT8[line["row"]],
                    *map(str, recipe_and_rows(line)),
                    str(len(steady(line))),
                    seconds(line),
                    f"{line['tokens_per_s']:,.0f}",
                    f"{line['tokens_per_s'] / in_memory[recipe_and_rows(line)]['tokens_per_s']:.2f}",
                    f"{line['gpu_gb']:.1f} ({line['gpu_reserved_gb']:.1f})",
                    f"{line['host_gb']:.0f}",
                    f"{line['losses'][common - 1]:.2f}",
                ]
                for line in lines
            ],
        )
        + f"\n{origin(lines[0])}, PyTorch {lines[0]['torch']}, torchao 0.17.0.\n"
    )


def float8_trace():
    """Returns the table of where the time of a step in memory goes."""
    traces = {recipe_and_rows(line)[0]: line["trace"] for line in read("fp8") if "trace" in line}
    kinds = {recipe: trace["streams"][str(trace["model_stream"])] for recipe, trace in traces.items()}
    return markdown_table.table(
        ["recipe", "step, ms", "products", "compiled: conversions, norms, ...", "attention", "AdamW", "other", "waits"],
        [
            [recipe]
            + [
                f"{ms:,.0f}"
                for ms in (
                    trace["ms"],
                    *(kinds[recipe][kind] for kind in ("product", "compiled", "attention", "AdamW", "other")),
                    trace["ms"] - trace["busy_ms"],
                )
            ]
            for recipe, trace in traces.items()
        ],
    )


# The rows with nearstep and their texts, by the file of their lines.
OTHER_MODELS = {
    "models": {"qwen2": "Qwen2.5 1.5B", "vit": "ViT-H/14, images of 224 by 224 pixels"},
    "models_later": {
        "llama": "Llama 3.2 1B",
        "gemma": "Gemma 3 1B",
        "mixtral": "Mixtral's kind, 16 layers, 8 experts",
        "llama-32k": "TinyLlama 1.1B, two rows of 32,768 tokens",
        "llama-32k-stream": "the same, layers streamed through at most 40 GB",
    },
}
PEAK_FLOPS = 989.5e12  # of which `mfu` is a share


def models(name):
    """Other models of Transformers, in memory and with nearstep."""
    found = lines_of(name)
    rows = []
    for model, words in OTHER_MODELS[name].items():
        memory, near = found[f"memory-{model.removesuffix('-stream')}"], found[f"nearstep-{model}"]
        rows.append(
            [
                words,
                f"{memory['mfu'] * PEAK_FLOPS / 6 / memory['tokens_per_s'] / 1e9:.2f}e9",
                *(f"{line['tokens_per_s']:,.0f}" for line in (memory, near)),
                f"{near['tokens_per_s'] / memory['tokens_per_s']:.2f}",
                *(f"{line['gpu_gb']:.1f}" for line in (memory, near)),
                f"{near['host_gb']:.0f}",
                " and ".join(f"{line['losses'][4]:.2f}" for line in (memory, near)),
            ]
        )
    line = next(iter(found.values()))
    return (
        markdown_table.table(
            [
                "shape",
                "parameters",
                "tokens/s in memory",
                "with nearstep",
                "of in memory",
                "GPU memory, GB: in memory",
                "with nearstep",
                "host memory with nearstep, GB",
                "losses of step 5",
            ],
            rows,
        )
        + f"\n{origin(line)}, PyTorch {line['torch']}.\n"
    )


# Added up, each over the row before; then each alone, over the first. A row without a line is left out.
ADDED_UP = {
    "deepspeed-nvme": "DeepSpeed, fp32 state on the disk",
    "nearstep-fp32-4-slots": "nearstep's update of fp32 state, dense gradients, nothing kept",
    "nearstep-compact-4-slots": "compact state, dense gradients, nothing kept",
    "nearstep-compact": "and state kept in the host's memory",
    "nearstep-q4": "and q4 gradients",
    "nearstep-q4-delta": "and deltas of new parameters",
}
ALONE = {
    "nearstep-compact-4-slots": "compact state alone",
    "nearstep-fp32": "kept state alone",
    "nearstep-fp32-q4-4-slots": "q4 gradients alone",
    "nearstep-fp32-delta-4-slots": "deltas alone",
}


def means():
    """Returns the table of what each of nearstep's methods adds, on one disk."""
    found = lines_of("means")
    rates = {row: line["tokens_per_s"] for row, line in found.items()}
    first = "nearstep-fp32-4-slots"
    rows = [("PyTorch's fused AdamW in memory", "memory-compiled", None)]
    steps = [row for row in ADDED_UP if row in rates]
    rows += [(ADDED_UP[row], row, before) for row, before in zip(steps, [None, *steps])]
    rows += [(word, row, first) for row, word in ALONE.items() if row in rates]
    return (
        markdown_table.table(
            [
                "means",
                "steps",
                "seconds of a step: median (least to most)",
                "tokens/s",
                "of in memory",
                "over the row before; alone: over nearstep's first",
                "disk, GB/s",
            ],
            [
                [
                    word,
                    str(len(steady(found[row]))),
                    seconds(found[row]),
                    f"{rates[row]:,.0f}",
                    f"{rates[row] / rates['memory-compiled']:.2f}",
                    f"{rates[row] / rates[before]:.2f}" if before else "-",
                    optional(found[row]["drive_gb_per_s"], ".1f"),
                ]
                for word, row, before in rows
            ],
        )
        + f"\n{origin(found[first])}.\n"
    )


def float8_share(name, row):
    line = lines_of(name)[row]
    return line["tokens_per_s"] / float8_in_memory(name)[recipe_and_rows(line)]["tokens_per_s"]
