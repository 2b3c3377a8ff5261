"""Tables and a figure of exports, plans, restarts and killed runs. Used by bench/tables."""

import figures
import markdown_table
from table_lines import origin, read


def export():
    """Rates of exports beside that of the drive."""
    return markdown_table.table(
        ["export", "GB", "ranks", "GB/s", "dd with fsync, GB/s", "of the drive's rate"],
        [
            [
                line["row"],
                f"{line['bytes'] / 1e9:.1f}",
                str(line["ranks"]),
                f"{line['gb_s']:.2f}",
                f"{line['drive_gb_s']:.2f}",
                f"{line['of_drive']:.2f}",
            ]
            for line in read("export")
        ],
    )


def planned():
    """Steps by nearstep plan beside those that were measured."""
    lines = read("planned")
    return markdown_table.table(
        [
            "row",
            "lines",
            "rows of a micro-batch",
            "GPU memory, GB",
            "planned, s",
            "measured, s",
            "planned over measured",
        ],
        [
            [
                f"`{line['row']}`",
                line["of"],
                str(line["micro_batch"]),
                str(line["gpu_gb"]),
                f"{line['planned_s']:.2f}",
                f"{line['measured_s']:.2f}",
                f"{line['planned_s'] / line['measured_s']:.2f}",
            ]
            for line in lines
        ],
    )


def pasted():
    """Steps of configs that are plans, as they were planned and measured."""
    lines = read("pasted")
    return (
        markdown_table.table(
            [
                "configuration",
                "planned, s",
                "measured, s",
                "planned over measured",
                "update, planned, s",
                "measured, s",
            ],
            [
                [
                    f"`{line['configuration']}`",
                    f"{line['planned_s']:.2f}",
                    f"{line['measured_s']:.2f}",
                    f"{line['planned_over_measured']:.2f}",
                    f"{line['terms_s']['T_opt']:.2f}",
                    f"{line['phases_s']['update']:.2f}",
                ]
                for line in lines
            ],
        )
        + f"\n{origin(lines[0])}.\n"
    )


def restart_texts():
    """A restart of many ranks, with the exchange played in one process."""
    rows = [
        [
            f"{line['ranks']:,}",
            f"{line['manifest_bytes']:,}",
            f"{line['bytes_per_rank']:,}",
            f"{line['cpu_s_per_rank']:.2f}",
        ]
        for line in read("restart_texts")
    ]
    return markdown_table.table(
        ["ranks, 8 on a node", "bytes of a manifest", "bytes that a rank gets", "CPU seconds"], rows
    )


def restart_ranks():
    """A restart of real ranks on one host."""
    rows = [
        [
            str(line["ranks"]),
            f"{line['bytes_per_rank']:,}",
            f"{line['cpu_s_per_rank']:.2f}",
            f"{line['most_cpu_s_per_rank']:.2f}",
        ]
        for line in read("restart_ranks")
    ]
    head = ["ranks, all on a host", "bytes that a rank gets", "CPU seconds of a rank, with its libraries", "at most"]
    return markdown_table.table(head, rows)


def killed(name):
    """A run that is killed again and again, life by life."""
    (line,) = read(name)
    lives = line["killed"]["lives"]
    columns = {"start_s": "start, s", "resume_s": "of it reading the state, s", "first_step_s": "first step, s"}
    columns = {key: head for key, head in columns.items() if key in lives[0]}
    rows = [
        [
            str(life["devices"]),
            f"{life['begins_at'] + 1} to {life['ends_at']}",
            str(life["durable"]),
            *(f"{life[key]:.1f}" for key in columns),
        ]
        for life in lives
    ]
    return (
        markdown_table.table(["devices", "steps of this life", "durable when it was killed", *columns.values()], rows)
        + f"\n{origin(line)}.\n"
    )


def killed_figure(name):
    (line,) = read(name)
    runs = {"undisturbed": line["undisturbed"], f"killed {line['kills']} times": line["killed"]}
    losses, times = [], []
    for (label, run), colour in zip(runs.items(), figures.COLOURS):
        curve = list(enumerate(run["losses"], 1))
        losses.append(figures.Series(label, curve, colour=colour))
        if "lives" in run:  # the same numbers lie above each other
            curve = [point for point in curve if point[0] % 5 == 0]
            losses[-1] = figures.Series(label, curve, style="points", colour=colour)
        times.append(figures.Series(label, run["points"], colour=colour))
    return figures.svg(
        [
            figures.Panel("loss of each step", "step", "loss", losses),
            figures.Panel("steps done", "seconds since the first start", "steps", times),
        ],
        f"points: each fifth step of the killed run; {line['lost_steps']} steps lost. {origin(line)}",
    )
