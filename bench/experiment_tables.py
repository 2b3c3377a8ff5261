"""Tables and a figure of devices, the paper's experiment, and scaling. Used by bench/tables."""

import figures
import markdown_table
from table_lines import origin, over, read


def csd():
    """Updates of state in memory by the cores and by the GPU."""
    rows = {
        "step.compact": "one device, 16 threads",
        "durable.compact": "the same, every step flushed",
        "devices.compact": "two devices of 8 threads",
        "gpu.compact": "the same, with the GPU's help",
    }
    lines = {line["row"]: line for line in read("csd")}
    first = next(iter(lines.values()))
    return (
        markdown_table.table(
            ["row", "1e6 parameters/s: median (least to most)", "of state, GB/s", "cores busy"],
            [
                [
                    word,
                    "{median:,.0f} ({least:,.0f} to {most:,.0f})".format(**lines[row]["mparam_s"]),
                    f"{lines[row]['gb_s']:.1f}",
                    f"{lines[row]['cores']:.1f}",
                ]
                for row, word in rows.items()
                if row in lines
            ],
        )
        + f"\n{origin(first)}; {first['parameters'] / 1e6:.0f} million parameters, {first['rounds']} rounds.\n"
    )


DEVICE_COLUMNS = {
    "su 550": "su",
    "su+o 550": "su+o",
    "su+o+c topk 258": "su+o+c, topk 1 %",
    "su+o+c dense compact": "compact state",
    "su+o+c q4 compact": "and q4",
    "ours": "and deltas",
}
# The paper's updates of GPT-2 4.0B, BASE over SU, SU+O and SU+O+C (Figure 9, seconds read from its drawing).
PAPER_UPDATES = {
    "su 550": {6: 17.55 / 13.05, 10: 17.75 / 9.63},
    "su+o 550": {6: 17.55 / 12.26, 10: 17.75 / 8.28},
    "su+o+c topk 258": {6: 17.55 / 10.77, 10: 17.75 / 7.29},
}


def ratio(line, key):
    return f"{line[key]:.2f} ({line['modelled_' + key]:.2f})"


def devices(name, measured="update"):
    """The update, or the whole step, as ``measured`` says, by the paper's means and by ours, measured on shaped links
    (modelled), beside the paper's figures.
    """
    lines = read(name)
    found = {(line["column"], line["devices"]): line for line in lines}
    counts = sorted({line["devices"] for line in lines})
    key = f"{measured}_s"

    def over(base, column, n):
        beside, one = found[base, n], found[column, n]
        return f"{beside[key] / one[key]:.2f} ({beside['modelled_' + key] / one['modelled_' + key]:.2f})"

    def published(figure, column, n):
        return "-" if (value := found[column, n].get(figure)) is None else f"{value:.2f}"

    rows = [["base, seconds", *(ratio(found["base", n], key) for n in counts)]]
    for column, label in DEVICE_COLUMNS.items():
        rows.append([label, *(over("base", column, n) for n in counts)])
        if column in PAPER_UPDATES:
            if measured == "update":
                rows.append(
                    [
                        f"{label}: the paper's update",
                        *(f"{PAPER_UPDATES[column][n]:.2f}" if n in PAPER_UPDATES[column] else "-" for n in counts),
                    ]
                )
            rows.append(
                [
                    f"{label}: the paper's step, A5000; A100",
                    *(
                        "; ".join(
                            published(figure, column, n)
                            for figure in ("published_over_base", "published_a100_over_base")
                        )
                        for n in counts
                    ),
                ]
            )
    rows.append(["su+o, over a base with 6.4 GB/s", *(over("base 6.4", "su+o 550", n) for n in counts)])
    first = lines[0]
    return (
        markdown_table.table([f"{measured} over that of base with as many drives", *map(str, counts)], rows)
        + f"\n{origin(first)}; {first['parameters'] / 1e6:.1f} million parameters, medians of "
        f"{len(first['each_step_s']) - 1} steps.\n"
    )


def paper():
    """The paper's models, modelled."""
    lines = read("paper")
    found = {(line["model"], line["devices"], line["column"]): line for line in lines}
    rows = []
    for model, count in dict.fromkeys((line["model"], line["devices"]) for line in lines):
        of = {
            column: found[model, count, column]
            for column in ("base", "su", "su+o", "su+o+c topk", "compact state", "compact state, q4")
        }
        rows.append(
            [
                model,
                str(count),
                f"({of['base']['step_s']:.2f}), {of['base'].get('published_step_s') or '-'}",
                *(
                    f"({of[column]['over_base']:.2f}), {of[column].get('published_over_base') or '-'}"
                    for column in ("su", "su+o", "su+o+c topk")
                ),
                *(f"({of[column]['over_base']:.2f})" for column in ("compact state", "compact state, q4")),
            ]
        )
    return (
        markdown_table.table(
            [
                "model",
                "drives",
                "base, s: (modelled), paper",
                "su over base",
                "su+o",
                "su+o+c, topk 1 %",
                "compact state",
                "compact state, q4",
            ],
            rows,
        )
        + f"\nOf commit {lines[0]['commit']}, {lines[0]['date'][:10]}.\n"
    )


ENGINES = {0: "no limit", 550: "550", 258: "258", 75: "75"}


def crossover():
    """Speed of the update over base: measured on shaped links (modelled)."""
    lines = [line for line in read("crossover") if line["origin"] == "shaped"]
    found = {(line["link_gb_s"], line["state"], line["engine_mparam_s"], line["devices"]): line for line in lines}
    counts = sorted({line["devices"] for line in lines})
    rows = [
        [state, f"{link}", word, *(ratio(found[link, state, engine, n], "over_base") for n in counts)]
        for state in ("fp32", "compact")
        for link in sorted({line["link_gb_s"] for line in lines})
        for engine, word in ENGINES.items()
    ]
    return (
        markdown_table.table(
            [
                "state",
                "host link, GB/s",
                "engine of a drive, 1e6 parameters/s",
                *(f"{n} drives" if n > 1 else "1 drive" for n in counts),
            ],
            rows,
        )
        + f"\n{origin(lines[0])}.\n"
    )


def crossover_figure():
    lines = read("crossover")

    def of(state, engine):
        mine = [line for line in lines if (line["state"], line["engine_mparam_s"]) == (state, engine)]
        links = sorted({line["link_gb_s"] for line in mine})
        series = []
        for link, colour in zip(links, figures.COLOURS):
            points = {
                kind: [
                    (line["devices"], line["over_base"])
                    for line in mine
                    if (line["link_gb_s"], line["origin"]) == (link, kind)
                ]
                for kind in ("modelled", "shaped")
            }
            series.append(figures.Series(f"link of {link} GB/s", points["modelled"], style="modelled", colour=colour))
            if points["shaped"]:
                series.append(figures.Series("", points["shaped"], style="points", colour=colour))
        limit = f"engines of {engine}e6 parameters/s" if engine else "engines that never wait"
        return figures.Panel(f"{state} state, {limit}", "drives", "speed of the update over base", series, level=1)

    return figures.svg(
        [of("fp32", 0), of("compact", 258), of("compact", 75)],
        f"dashes: modelled; points: measured on shaped links; below the line near storage loses. {origin(lines[0])}",
    )


def scaling():
    """Returns the table of scaling to 1024 nodes, which is modelled."""
    lines = [
        line
        for line in read("scaling")
        if line["origin"] == "modelled" and "trained" in line["series"] and line["nodes"] in (1, 8, 32, 128, 1024)
    ]
    rows = [
        [
            line["scaling"],
            str(line["nodes"]),
            str(line["gpus"]),
            f"({line['step_s']:.2f})",
            f"({line['efficiency']:.2f})",
            f"({line['compute_share']:.2f})",
            line["binds"],
        ]
        for line in lines
    ]
    return (
        markdown_table.table(
            [
                "scaling",
                "nodes",
                "GPUs",
                "step, s",
                "tokens per GPU over the fewest nodes with a plan",
                "share in which GPUs compute",
                "binds",
            ],
            rows,
        )
        + f"\nOf commit {lines[0]['commit']}, {lines[0]['date'][:10]}.\n"
    )


def nodes():
    """Storage nodes beside one node that computes: the update measured on virtual hosts (modelled)."""
    lines = read("nodes")
    found = {(line["mode"], line["cable"], line["storage"]): line for line in lines}
    columns = {
        (mode, cable): f"{word}, {f'links of {cable}' if cable else 'network by the program'}"
        for mode, word in (("su+o", "fp32 state"), ("ours", "compact state, q4, deltas"))
        for cable in dict.fromkeys(line["cable"] for line in lines)
    }
    rows = [
        [
            f"{storage} of {lines[0]['csds']} CSDs" if storage else f"none: {lines[0]['csds']} CSDs of its own",
            *(
                f"{found[mode, cable, storage]['update_s']:.2f} "
                f"({found[mode, cable, storage]['modelled_update_s']:.2f})"
                for mode, cable in columns
            ),
        ]
        for storage in sorted({line["storage"] for line in lines})
    ]
    return (
        markdown_table.table(["storage nodes", *columns.values()], rows)
        + f"\n{origin(lines[0])}; {lines[0]['parameters'] / 1e6:.1f} million parameters.\n"
    )


def update_of(column):
    """Speed-up of the update with 10 drives."""
    found = {line["column"]: line["update_s"] for line in read("devices") if line["devices"] == 10}
    return found["base"] / found[column]
