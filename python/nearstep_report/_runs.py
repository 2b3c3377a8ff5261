"""Training runs: what `nearstep train` wrote with --json and --metrics. Used by _studies.py."""

import os
import pathlib
from dataclasses import dataclass, field

from . import _findings as findings
from ._drawing import COLOURS, PHASES, Bar, Line
from ._files import Metrics, is_same_run
from ._study import Study, facts
from ._values import amount, at, formatted, human_bytes, number, numbers, objects, words

MOST_RUNS = 8  # in one chart
LINKS = {
    "host link": {
        "state read": ("host_link", "state_read"),
        "state written": ("host_link", "state_write"),
        "gradients": ("host_link", "gradients"),
        "parameters": ("host_link", "parameters"),
    },
    "inside devices": {"state read": ("device_internal", "read"), "state written": ("device_internal", "write")},
    "network": {"gradients": ("network", "gradients"), "parameters": ("network", "parameters")},
    "within nodes": {"gradients": ("node", "gradients"), "parameters": ("node", "parameters")},
}
LINK_COLOURS = {"state read": "#4d8ab5", "state written": "#2c5f85", "gradients": "#df8a4d", "parameters": "#5aa469"}
LANE_COLOURS = {"busy": "#4d8ab5"}


@dataclass
class Run:
    name: str
    summary: dict = field(default_factory=dict)
    metrics: Metrics | None = None

    def about(self, key):
        return at(self.summary, key) if self.summary else at(self.metrics.head, key)

    @property
    def origin_of_seconds(self):
        return (
            "shaped"
            if at(self.summary, "links") or (self.metrics and self.metrics.head.get("has_shaped_links") is True)
            else "measured"
        )

    def points(self, name):
        return self.metrics.points(name) if self.metrics else []

    def losses(self):
        if self.metrics:
            return self.points("loss")
        losses, first = at(self.summary, "losses"), number(at(self.summary, "first_step"))
        return list(enumerate(losses, int(first))) if isinstance(losses, list) and first is not None else []

    def heldout(self):
        known = self.points("heldout_loss")
        return known or [(at(self.summary, "steps"), at(self.summary, "heldout_loss"))]

    def phases(self):
        """Mean seconds of a step's phases."""
        if self.summary:
            return {
                key: amount(at(self.summary, "phases_s", key)) for key in ("forward", "backward", "update", "hidden")
            }
        return {key: self.metrics.mean(f"phases_s/{key}") for key in ("forward", "backward", "update", "hidden")}

    def bytes_on(self, path):
        if self.summary:
            return amount(at(self.summary, "bytes_per_parameter", *path))
        return self.metrics.mean("/".join(("bytes_per_parameter", *path)))


def pair(summaries, metrics):
    """The runs: each metrics file goes to the summary of the same run whose name is most alike."""
    runs, left = [], dict(metrics)
    for name, summary in summaries.items():
        same = [other for other, one in left.items() if is_same_run(summary, one)]
        mine = max(same, key=lambda other: len(os.path.commonprefix([other, name])), default=None)
        runs.append(Run(name, summary, left.pop(mine, None)))
    return runs + [Run(name, {}, one) for name, one in left.items()]


def _name_apart(runs):
    """Gives each run the shortest name that tells it apart: its config, else its file."""
    paths = [pathlib.PurePath(run.name).with_suffix("") for run in runs]
    configs = [words(run.about("config")) for run in runs]
    for run, path, config in zip(runs, paths, configs):
        name = str(path) if len(runs) > 1 and len({path.name for path in paths}) < len(runs) else path.name
        run.name = config if len(runs) == 1 and config else words(name)


def _step_seconds(phases):
    return phases["forward"] + phases["backward"] + phases["update"] - phases["hidden"]


def _row(run):
    phases, seconds = run.phases(), run.origin_of_seconds
    summary = run.summary
    losses, heldout = run.losses(), run.heldout()
    return {
        "origin": seconds,
        "file": run.name,
        **{key: run.about(key) for key in ("config", "site", "commit", "mode", "ranks", "devices")},
        "steps": at(summary, "steps") if summary else int(losses[-1][0]) if losses else None,
        "tokens_per_s": at(summary, "tokens_per_s"),
        "forward_s": phases["forward"],
        "backward_s": phases["backward"],
        "update_s": phases["update"],
        "hidden_s": phases["hidden"],
        "step_s": _step_seconds(phases),
        "modelled_update_s": at(summary, "modelled_s", "update"),
        "commit_s": at(summary, "phases_s", "commit"),
        "train_loss": losses[-1][1] if losses else None,
        "heldout_loss": heldout[-1][1] if heldout else None,
        "masters_xxh3": at(summary, "masters_xxh3"),
        "column": run.name,
    }


def _loss_chart(runs, drawer):
    lines = []
    for run, colour in zip(runs, COLOURS):
        is_alone = len(runs) == 1
        lines.append(Line("training" if is_alone else run.name, "measured", run.losses(), colour))
        lines.append(
            Line(
                "held-out" if is_alone else run.name,
                "measured",
                run.heldout(),
                "#1d242c" if is_alone else colour,
                "D",
                tip=f"{run.name}, held-out",
            )
        )
    for line in lines[1::2]:
        line.joins = len(line.points) > 1
    return drawer.lines(
        "Loss", "step", "nats per token", lines, note="" if len(runs) == 1 else "Diamonds: held-out.", from_zero=False
    )


def _phase_bars(runs):
    bars = []
    for run in runs:
        phases = run.phases()
        hidden = min(phases["hidden"], phases["update"])
        bars.append(
            Bar(
                run.name,
                run.origin_of_seconds,
                dict(zip(PHASES, (phases["forward"], phases["backward"], phases["update"] - hidden, hidden))),
                f"{formatted(_step_seconds(phases), '.3g')} s a step",
            )
        )
        bars.append(
            Bar(run.name, "modelled", {"update": at(run.summary, "modelled_s", "update")}, "update at the links' rates")
        )
    return bars


def _step_lines(runs):
    lines = []
    for run in runs:
        parts = [run.points(f"phases_s/{key}") for key in ("forward", "backward", "update", "hidden")]
        points = [(one[0][0], one[0][1] + one[1][1] + one[2][1] - one[3][1]) for one in zip(*parts)]
        lines.append(Line(run.name, run.origin_of_seconds, points))
    return lines


def _study_of_runs(runs, drawer):
    shown = runs[:MOST_RUNS]
    rows = [_row(run) for run in runs]
    study = Study(
        title="Training",
        findings=findings.of_steps(rows)
        + [found for run in runs for found in findings.of_light(run.name, run.summary)],
        charts=[
            _loss_chart(shown, drawer),
            drawer.bars("Phases of a step", "seconds", _phase_bars(shown), PHASES, "Means over all steps of the run."),
            drawer.lines("Seconds of each step", "step", "seconds", _step_lines(shown)),
        ],
        columns=[
            ("file", "run", ""),
            ("config", "config", ""),
            ("site", "site", ""),
            ("commit", "commit", ""),
            ("mode", "mode", ""),
            ("ranks", "ranks", ""),
            ("devices", "devices", ""),
            ("steps", "steps", ""),
            ("tokens_per_s", "tokens/s", ".4g"),
            ("forward_s", "forward s", ".3g"),
            ("backward_s", "backward s", ".3g"),
            ("update_s", "update s", ".3g"),
            ("hidden_s", "of it hidden s", ".3g"),
            ("modelled_update_s", "expected", ".3g"),
            ("commit_s", "commit s", ".3g"),
            ("train_loss", "loss", ".4f"),
            ("heldout_loss", "held-out", ".4f"),
            ("masters_xxh3", "masters", ""),
        ],
        rows=rows,
    )
    for key in ("config", "site", "commit"):
        same = {words(row[key]) for row in rows}
        if len(same) == 1:
            study.about += facts(rows[0], key)
            study.columns = [column for column in study.columns if column[0] != key]
    if len(runs) > len(shown):
        study.notes.append(f"The charts show the first {len(shown)} of {len(runs)} runs.")
    if len(runs) == 1:
        study.about += facts(
            {**(runs[0].metrics.head if runs[0].metrics else {}), **runs[0].summary},
            "mode",
            "ranks",
            "devices",
            "parameters",
        )
        study.figures = _large_figures(runs[0], rows[0])
    return study


def _large_figures(run, row):
    last = number(at(run.metrics.head, "last_step")) if run.metrics else None
    figures = [("step", f"{row['steps']} of {last:g}" if last and row["steps"] is not None else words(row["steps"]))]
    for name, key, form in (
        ("training loss", "train_loss", ".4f"),
        ("held-out loss", "heldout_loss", ".4f"),
        ("seconds a step", "step_s", ".3g"),
        ("tokens a second", "tokens_per_s", ".4g"),
    ):
        value = number(row[key])
        if value:
            figures.append((name, formatted(value, form)))
    return [(name, value) for name, value in figures if value]


def _study_of_links(runs, drawer):
    bars = []
    for run in runs[:MOST_RUNS]:
        for link, parts in LINKS.items():
            label = f"{run.name}: {link}" if len(runs) > 1 else link
            bars.append(Bar(label, "measured", {name: run.bytes_on(path) for name, path in parts.items()}))
            formula = {name: at(run.summary, "formula_bytes_per_parameter", *path) for name, path in parts.items()}
            bars.append(Bar(label, "modelled", formula, "by formula"))
    chart = drawer.bars("Bytes per parameter and step", "bytes", bars, LINK_COLOURS)
    rows = [
        {
            "origin": "published" if key != "measured" else "measured",
            "run": run.name,
            "method": method,
            **{
                f"{link}_bytes": at(run.summary, "shared_links", key, link)
                for link in ("host_link", "network", "total")
            },
        }
        for run in runs
        for key, method in (
            ("measured", "this run"),
            ("zero_infinity", "ZeRO-Infinity"),
            ("smart_update", "SmartUpdate"),
            ("smart_comp_2_percent", "SmartComp, 2 %"),
        )
        if at(run.summary, "shared_links", key)
    ]
    for row in rows:
        if row["origin"] == "published":
            row.update({f"modelled_{key}": row[key] for key in list(row) if key.endswith("_bytes")})
    return Study(
        title="Bytes on the links",
        charts=[chart],
        columns=[
            ("run", "run", ""),
            ("method", "method", ""),
            ("host_link_bytes", "host links", ".3g"),
            ("network_bytes", "network", ".3g"),
            ("total_bytes", "both", ".3g"),
        ],
        rows=rows,
        notes=[
            "Host links and the network are shared by devices and nodes. Other methods: bytes per parameter and step "
            "by their papers' formulas."
        ]
        if rows
        else [],
    )


def _study_of_hosts(runs):
    """A row for each host of a run on several."""
    rows = []
    for run in runs:
        hosts = objects(at(run.summary, "hosts"))
        for host in hosts if len(hosts) > 1 else []:
            keys = (
                "host",
                "ranks",
                "network_sent_bytes",
                "slow_computed",
                "slow_devices",
                "slow_drives",
                "slow_nccl",
                "slow_sender",
            )
            rows.append({"origin": "measured", "run": run.name, **{key: host.get(key) for key in keys}})
            rows[-1]["network_sent_bytes"] = human_bytes(amount(host.get("network_sent_bytes")))
    return Study(
        title="Hosts",
        columns=[
            ("run", "run", ""),
            ("host", "host", ""),
            ("ranks", "ranks", ""),
            ("network_sent_bytes", "sent to others", ""),
            ("slow_computed", "steps that waited for its ranks", ""),
            ("slow_devices", "for its devices", ""),
            ("slow_drives", "for drives that became slower", ""),
            ("slow_nccl", "for its GPUs in NCCL", ""),
            ("slow_sender", "for its parameters", ""),
        ],
        rows=rows,
        notes=["A step waited for what took 1.5 times as long as on the median rank, or as in the first steps."]
        if rows
        else [],
    )


def _study_of_wear(runs, drawer):
    rows, bars = [], []
    for run in runs:
        written = numbers(at(run.summary, "endurance", "written_bytes_per_step"))
        if not written:
            continue
        total = numbers(at(run.summary, "endurance", "written_bytes"))
        rated = number(at(run.summary, "endurance", "rated_tbw"))
        rows.append(
            {
                "origin": "measured",
                "run": run.name,
                "devices": len(written),
                "per_step": human_bytes(max(written)),
                "in_all": human_bytes(max(total, default=0)),
                "rated_tbw": f"{rated:g}" if rated else None,
                "modelled_days": at(run.summary, "endurance", "days_to_rated_tbw"),
            }
        )
        bars.append(
            Bar(
                run.name,
                "measured",
                {"written": max(written) / 1e6},
                f"{max(written) / 1e6:.3g} MB, {len(written)} devices",
            )
        )
    return Study(
        title="Wear of the drives",
        charts=[
            drawer.bars(
                "Written to the most written device in a step",
                "MB",
                bars[:24],
                {"written": LINK_COLOURS["state written"]},
            )
        ],
        columns=[
            ("run", "run", ""),
            ("devices", "devices", ""),
            ("per_step", "per step", ""),
            ("in_all", "in all", ""),
            ("rated_tbw", "rated TB", ".4g"),
            ("modelled_days", "days to the rating", ".0f"),
        ],
        rows=rows,
        notes=["The most written device of each run. State, headers and, in mode base, gradients; without checkpoints."]
        + ["Days: at this rate, from the drive's rating."] * any(row["rated_tbw"] for row in rows),
    )


def _study_of_lanes(runs, drawer):
    bars = []
    for run in runs[:MOST_RUNS]:
        lanes = at(run.summary, "lanes")
        for lane in lanes if isinstance(lanes, dict) else ():
            if lane != "together":
                bars.append(Bar(f"{run.name}: {lane}", run.origin_of_seconds, {"busy": lanes[lane]}))
    return Study(
        title="What was busy (--trace)",
        charts=[drawer.bars("Seconds of work per second and rank", "seconds", bars, LANE_COLOURS)],
    )


def studies_of_runs(summaries, metrics, compared, drawer):
    """`compared`: the summaries of each comparison; their bytes and wear are shown beside those of runs."""
    runs = pair(summaries, metrics)
    _name_apart(runs)
    columns = [
        Run(f"{words(one.get('column'))}, {words(one.get('devices'))} devices", one)
        for summaries in compared.values()
        for one in summaries
    ]
    studies = []
    if runs:
        studies.append(_study_of_runs(runs, drawer))
        studies.append(_study_of_hosts(runs))
        studies.append(_study_of_lanes(runs, drawer))
    if runs or columns:
        studies.append(_study_of_links(runs or columns, drawer))
        studies.append(_study_of_wear(runs + columns, drawer))
    return [study for study in studies if study.rows or any(study.charts)]
