"""Brings nearstep's JSON files into one form: findings, charts, a table and notes. Used by _command.py."""

from . import _findings as findings
from ._drawing import PHASES, Bar, Drawer
from ._runs import studies_of_runs
from ._study import Study, facts
from ._values import at, number, numbers, objects, words


def of_experiment(path, content, drawer):
    rows = objects(content.get("rows"))
    notes = content.get("notes")
    return Study(
        title=words(content.get("title")) or path,
        path=path,
        about=facts(content, "config", "site", "commit", "cores", "command"),
        findings=findings.of_steps(rows) + findings.of_plans(rows),
        charts=[drawer.plot(plot, rows) for plot in objects(content.get("plots"))],
        columns=[
            (words(one.get("key")), words(one.get("name")), words(one.get("format")))
            for one in objects(content.get("columns"))
        ],
        rows=rows,
        notes=[words(note) for note in notes if words(note)] if isinstance(notes, list) else [],
    )


def _row_of_compare(run):
    return {
        "origin": "shaped" if at(run, "links") else "measured",
        "column": at(run, "column"),
        "devices": at(run, "devices"),
        "forward_s": at(run, "phases_s", "forward"),
        "backward_s": at(run, "phases_s", "backward"),
        "update_s": at(run, "phases_s", "update"),
        "modelled_update_s": at(run, "predicted_s", "update"),
        "step_s": at(run, "phases_s", "total"),
        "modelled_step_s": at(run, "predicted_s", "total"),
        "over_base": at(run, "speedup_over_base"),
        "modelled_over_base": at(run, "predicted_speedup_over_base"),
        "over_first_base": at(run, "speedup_over_first_base"),
        "loss": (numbers(at(run, "losses")) or [None])[-1],
    }


def short(column):
    """ "su+o+c:csd.state=compact" as "su+o+c compact"."""
    mode, *settings = words(column).split(":")
    return " ".join([mode, *(setting.split("=", 1)[-1] for setting in settings)])


def _rates_of(links):
    """The rates of shaped links, as one fact."""
    rates = (
        [f"{words(key)} {number(rate):g}" for key, rate in links.items() if number(rate)]
        if isinstance(links, dict)
        else []
    )
    return [("links", ", ".join(rates))] if rates else []


def of_compare(path, content, drawer):
    runs = objects(content)
    rows = [_row_of_compare(run) for run in runs]
    bases = [row for row in rows if row["column"] == "base"]
    first = number(min(bases, key=lambda row: number(row["devices"]) or 0)["modelled_step_s"]) if bases else None
    for row in rows:
        mine = number(row["modelled_step_s"])
        row["modelled_over_first_base"] = first / mine if first and mine else None
    bars = []
    for row in sorted(rows, key=lambda row: number(row["devices"]) or 0):
        label = f"{short(row['column'])}, {words(row['devices'])} devices"
        parts = zip(list(PHASES)[:3], (row["forward_s"], row["backward_s"], row["update_s"]))
        bars.append(Bar(label, row["origin"], dict(parts)))
        bars.append(Bar(label, "modelled", {"update": row["modelled_update_s"]}))
    note = "Medians; the first step is left out."
    if any(number(row["modelled_update_s"]) for row in rows):
        note += " Below: the update at the rates of the links."
    lines = [
        {
            "title": "Seconds of a step",
            "x": "devices",
            "y": ["step_s", "modelled_step_s"],
            "series": "column",
            "x_name": "devices",
            "y_name": "seconds",
        },
        {
            "title": "Speed-up over base with the fewest devices",
            "x": "devices",
            "y": ["over_first_base", "modelled_over_first_base"],
            "series": "column",
            "x_name": "devices",
            "y_name": "speed-up",
        },
    ]
    shown = [{**row, "column": short(row["column"])} for row in rows]
    return Study(
        title="Modes side by side (nearstep compare)",
        path=path,
        about=facts(runs[0], "config", "site", "commit", "ranks", "parameters") + _rates_of(at(runs[0], "links")),
        findings=findings.of_steps(shown),
        charts=[
            drawer.bars("Phases of a step", "seconds", bars[: 2 * 24], PHASES, note),
            *(drawer.plot(spec, shown) for spec in lines),
        ],
        columns=[
            ("column", "column", ""),
            ("devices", "devices", ""),
            ("forward_s", "forward s", ".3f"),
            ("backward_s", "backward s", ".3f"),
            ("update_s", "update s", ".3f"),
            ("modelled_update_s", "expected", ".3f"),
            ("step_s", "step s", ".3f"),
            ("modelled_step_s", "expected", ".3f"),
            ("over_base", "over base", ".2f"),
            ("modelled_over_base", "expected", ".2f"),
            ("over_first_base", "over first base", ".2f"),
            ("modelled_over_first_base", "expected", ".2f"),
            ("loss", "loss", ".4f"),
        ],
        rows=shown,
    )


def _row_of_plan(plan):
    choice = at(plan, "choice")
    return {
        "origin": "modelled",
        "series": "plan",
        "binds": at(plan, "binds"),
        **{key: at(plan, key) for key in ("nodes", "devices", "step_s", "tokens_per_s", "refused")},
        **{key: at(plan, "terms_s", key) for key in ("T_fwd", "T_bwd", "T_opt")},
        **{key: at(plan, "replication", key) for key in ("T_opt_n", "T_total_n")},
        **{key: at(choice, key) for key in ("parameters", "gradients", "optimizer", "codec")},
    }


def of_plans(path, content, drawer):
    rows = [_row_of_plan(plan) for plan in objects(content)]
    plot = {
        "title": "Tokens per second",
        "x": "devices",
        "y": ["tokens_per_s"],
        "series": "series",
        "x_name": "CSDs",
        "y_name": "tokens/s",
        "log": True,
    }
    return Study(
        title="Plans (nearstep plan)",
        path=path,
        findings=findings.of_plans(objects(content)),
        charts=[drawer.plot(plot, rows)],
        columns=[
            ("nodes", "nodes", ""),
            ("devices", "CSDs", ""),
            ("step_s", "step s", ".3g"),
            ("tokens_per_s", "tokens/s", ".4g"),
            ("T_fwd", "T_fwd", ".3g"),
            ("T_bwd", "T_bwd", ".3g"),
            ("T_opt", "T_opt", ".3g"),
            ("T_opt_n", "T_opt,n", ".3g"),
            ("T_total_n", "T_total,n", ".3g"),
            ("binds", "binds", ""),
            ("parameters", "P", ""),
            ("gradients", "G", ""),
            ("optimizer", "OS", ""),
            ("codec", "codec", ""),
            ("refused", "no plan because", ""),
        ],
        rows=rows,
        notes=["Everything here is modelled: formulas over the rates of the site file."],
    )


def kind_of(content):
    """ "experiment", "compare", "plan", "run", or None for all other JSON."""
    if isinstance(content, dict):
        return (
            "experiment"
            if content.get("kind") == "nearstep experiment"
            else "run"
            if "masters_xxh3" in content
            else None
        )
    first = content[0] if isinstance(content, list) and content else None
    return "compare" if at(first, "column") is not None else "plan" if at(first, "choices_costed") is not None else None


def studies_of(contents, metrics, ignored):
    """The studies of all files. Names of JSON files that are no results are added to `ignored`."""
    drawer = Drawer()
    kinds = {path: kind_of(content) for path, content in contents.items()}
    ignored += [path for path, kind in kinds.items() if kind is None]
    runs = {path: contents[path] for path, kind in kinds.items() if kind == "run"}
    compared = {path: objects(contents[path]) for path, kind in kinds.items() if kind == "compare"}
    studies = studies_of_runs(runs, metrics, compared, drawer)
    makers = {"compare": of_compare, "plan": of_plans, "experiment": of_experiment}
    for wanted, make in makers.items():
        studies += [make(path, contents[path], drawer) for path, kind in kinds.items() if kind == wanted]
    for study in studies:
        study.charts = [chart for chart in study.charts if chart]
    return studies
