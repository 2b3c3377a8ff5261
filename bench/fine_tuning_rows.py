"""The rows of bench/fine_tuning, how each task is trained, and the table of results. Standard library only."""

import json
import statistics

import markdown_table

TASKS = {
    "SST-2": "bert",
    "QNLI": "bert",
    "digits": "vit",
    "Shakespeare": "bloom",
    "SST-2 by GPT-2": "gpt2",
    "QNLI by GPT-2": "gpt2",
}
NETWORKS = {"bert": "gutenberg", "vit": "digits", "bloom": "gutenberg"}  # and what each is pretrained on
SOURCES = {
    "SST-2": "sst2",
    "QNLI": "qnli",
    "digits": "digits",
    "Shakespeare": "shakespeare",
    "SST-2 by GPT-2": "sst2-gpt2",
    "QNLI by GPT-2": "qnli-gpt2",
}
PRETRAINING = {
    "bert": {"batch": 256, "rate": 7e-4},
    "vit": {"batch": 256, "rate": 1e-3},
    "bloom": {"batch": 64, "rate": 1e-3},
}
# The rate rises in the first tenth of the steps and falls linearly to zero; LoRA's is five times as high.
RECIPES = {
    "SST-2": {"batch": 128, "epochs": 1, "rate": 2e-4},
    "QNLI": {"batch": 128, "epochs": 3, "rate": 2e-4},
    "digits": {"batch": 64, "epochs": 15, "rate": 5e-4},
    "Shakespeare": {"batch": 32, "epochs": 4, "rate": 3e-4},
    "SST-2 by GPT-2": {"batch": 128, "epochs": 1, "rate": 1e-4},
    "QNLI by GPT-2": {"batch": 128, "epochs": 3, "rate": 1e-4},
}
KEEPS = (0.1, 0.05, 0.02, 0.01)


def settings():
    """Returns for each row of the table the arguments of nearstep.AdamW, or None for torch.optim.AdamW in memory."""
    rows = {"in memory": None, "fp32 state": {"state": "fp32"}, "compact state": {"state": "compact"}}
    for codec in ("q8", "q4"):
        rows[f"compact state, {codec}"] = {"state": "compact", "codec": codec}
    for feedback in (False, True):
        for keep in KEEPS:
            rows[f"compact state, topk {keep * 100:g} %{' + feedback' if feedback else ''}"] = {
                "state": "compact",
                "codec": "topk",
                "config": {"compress.keep": keep, "compress.error_feedback": feedback},
            }
    rows["LoRA in memory"] = None
    rows["LoRA, fp32 state"] = {"state": "fp32"}
    rows["LoRA, compact state, q4"] = {"state": "compact", "codec": "q4"}
    return rows


def recipe(task, is_small, most_rows):
    """How the task is trained. `most_rows`: of SST-2; 0 means all."""
    found = dict(RECIPES[task])
    if task.startswith("SST-2") and most_rows:
        found["rows"] = most_rows
    if is_small:
        found |= {"batch": 8, "epochs": 1, "rows": 24}
    return found


def jobs(tasks, names, seeds, is_small, most_rows):
    """All rows, those of the first seed first."""
    return [
        {"kind": "row", "task": task, "setting": name, "seed": seed, "recipe": recipe(task, is_small, most_rows)}
        for seed in range(1, seeds + 1)
        for task in tasks
        for name in names
    ]


def read(path):
    """The lines of a results file. A last line that was cut off is left out."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def is_done(job, lines):
    return any(line.items() >= job.items() for line in lines)


def spread(values, decimals):
    """Mean, and in brackets the largest minus the smallest."""
    return f"{statistics.mean(values):.{decimals}f} ({max(values) - min(values):.{decimals}f})"


def cell(lines, task):
    """The results of all seeds, and how many these are if they are fewer than three."""
    found = [line["result"] for line in lines if line["task"] == task]
    if not found:
        return None
    return spread(found, 4 if task == "Shakespeare" else 2) + (f", {len(found)} of the seeds" if len(found) < 3 else "")


def head_and_rows(lines):
    """The table of what is known of each setting, from lines with the recipe and the pretrained network of the task's
    last line. It has the tasks of these lines."""
    rows = [line for line in lines if line["kind"] == "row"]
    newest = {line["task"]: line for line in rows}
    rows = [line for line in rows if all(line[key] == newest[line["task"]][key] for key in ("recipe", "pretrained"))]
    tasks = [task for task in TASKS if task in newest]
    of_bert = [line for line in rows if TASKS[line["task"]] == "bert"]
    shown = []
    for name in settings():
        if not (of_name := [line for line in rows if line["setting"] == name]):
            continue
        sizes = [line["gradient_bytes"] for line in of_bert if line["setting"] == name and "gradient_bytes" in line]
        shown.append(
            [
                name,
                *([statistics.mean(sizes) / 1e6 if sizes else None] if of_bert else []),
                *(cell(of_name, task) for task in tasks),
            ]
        )
    measured = [
        f"{task}, {'nats per token' if task == 'Shakespeare' else 'accuracy %'}: mean (most - least)" for task in tasks
    ]
    return ["setting", *(["BERT's gradients, MB a step"] if of_bert else []), *measured], shown


def table(lines):
    """Prints the table, and how the networks were pretrained."""
    for line in lines:
        if line["kind"] == "pretrain":
            print(
                f"{line['network']}: {line['parameters'] / 1e6:.2f} million parameters, pretrained for "
                f"{line['steps']} steps in {line['seconds']:.0f} s, "
                f"loss {line['loss']:.3f}, held-out {line['heldout_loss']:.3f}, {line['device']}"
            )
    markdown_table.print_table(*head_and_rows(lines))
