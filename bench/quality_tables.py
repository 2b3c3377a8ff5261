"""Tables and figures of what is learnt. Used by bench/tables."""

import statistics

import figures
import fine_tuning_rows
import markdown_table
from table_lines import origin, read


RUNS = {
    "su+o": "fp32 state, dense gradients",
    "q4-compact": "compact state, q4 gradients",
    "topk": "fp32 state, top-k 1 %",
    "topk-compact-feedback": "compact state, top-k 1 % with error feedback",
}


def of_runs(name):
    lines = read(name)
    return {
        run: [line for line in lines if line["run"] == run] for run in RUNS if any(line["run"] == run for line in lines)
    }


def spread(values, form=".4f"):
    return f"{statistics.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def quality(name):
    """Held-out losses of a long run, over seeds."""
    runs = of_runs(name)
    dense = {line["settings"]["train.seed"]: line["heldout_loss"] for line in runs["su+o"]}
    first = runs["su+o"][0]
    rows = [
        [
            RUNS[run],
            str(len(lines)),
            f"{lines[0]['compress']['payload_bytes_per_parameter']:.2f}",
            spread([line["heldout_loss"] for line in lines]),
            ""
            if run == "su+o"
            else spread(
                [
                    line["heldout_loss"] - dense[seed]
                    for line in lines
                    if (seed := line["settings"]["train.seed"]) in dense
                ],
                "+.4f",
            ),
        ]
        for run, lines in runs.items()
    ]
    return markdown_table.table(
        [
            "run",
            "seeds",
            "gradient, bytes per parameter",
            "held-out loss after the last step: mean (least to most)",
            "over dense with the same seed",
        ],
        rows,
    ) + (f"\n{origin(*runs['su+o'])}; {first['parameters'] / 1e6:.2f} million parameters, {first['steps']} steps.\n")


def quality_figure(name):
    runs = of_runs(name)

    def series(run, begin):
        steps = [step for step, _ in run[0]["heldout"] if step >= begin]
        at = {step: [dict(line["heldout"])[step] for line in run] for step in steps}
        return [(step, statistics.mean(losses)) for step, losses in at.items()], [
            (step, min(losses), max(losses)) for step, losses in at.items()
        ]

    last = runs["su+o"][0]["steps"]
    panels = []
    for title, begin, names in (
        ("held-out loss, bands over seeds", last // 20, list(runs)),
        ("fp32 and q4, from half of the run on", last // 2, ["su+o", "q4-compact"]),
    ):
        lines = []
        for run, colour in zip(RUNS, figures.COLOURS):
            if run in names and run in runs:
                points, band = series(runs[run], begin)
                lines.append(figures.Series(run, points, band, colour=colour))
        panels.append(figures.Panel(title, "step", "held-out loss", lines))
    return figures.svg(panels, origin(*runs["su+o"]))


def fine_tuning(name):
    """A pretrained network on tasks."""
    lines = read(name)
    return markdown_table.table(*fine_tuning_rows.head_and_rows(lines)) + f"\n{origin(lines[0])}.\n"
