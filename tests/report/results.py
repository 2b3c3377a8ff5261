"""Made-up results in the forms of nearstep's files, and the package from its sources."""

import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.append(str(ROOT / "tests/support"))
PHASES = {"forward": 0.1, "backward": 0.4, "update": 0.3, "hidden": 0.05}


def summary(mode="su+o", losses=(3.0, 2.5, 2.25), **more):
    links = {
        "host_link": {"state_read": 0.0, "state_write": 0.0, "gradients": 2.0, "parameters": 2.5},
        "device_internal": {"read": 12.0, "write": 12.5},
        "network": {"gradients": 0.0, "parameters": 0.0},
        "node": {"gradients": 2.0, "parameters": 2.0},
    }
    return {
        "masters_xxh3": "00ff00ff00ff00ff",
        "config": "tiny",
        "site": "localhost",
        "commit": "abc",
        "mode": mode,
        "ranks": 2,
        "devices": 4,
        "parameters": 523600,
        "first_step": 1,
        "steps": len(losses),
        "losses": list(losses),
        "heldout_loss": 2.4,
        "tokens_per_s": 4000.0,
        "phases_s": dict(PHASES, commit=0.01),
        "modelled_s": {"gradients": 0.2, "update": 0.25},
        "bytes_per_parameter": links,
        "formula_bytes_per_parameter": {"host_link": {"gradients": 2.0, "parameters": 2.0}},
        "shared_links": {
            "measured": {"host_link": 4.5, "network": 0.0, "total": 4.5},
            "zero_infinity": {"host_link": 32.0, "network": 0.0, "total": 32.0},
        },
        "endurance": {
            "written_bytes": [9e6, 8e6],
            "written_bytes_per_step": [3e6, 2e6],
            "rated_tbw": 600.0,
            "days_to_rated_tbw": 940.6,
        },
        "speed_of_light": {"share": 0.62, "bound": "storage", "compute_s": 0.1, "storage_s": 0.5},
        "lanes": {"compute": 0.6, "engine": 0.3, "together": 0.9},
        **more,
    }


def metrics_lines(losses=(3.0, 2.5, 2.25), mode="su+o", last_step=None, ended=None):
    """The lines of a metrics file."""
    lines = [
        {
            "config": "tiny",
            "site": "localhost",
            "mode": mode,
            "last_step": last_step or len(losses),
            "has_shaped_links": False,
        }
    ]
    for step, loss in enumerate(losses, 1):
        lines.append(
            {
                "step": step,
                "loss": loss,
                "gradient_norm": 1.5,
                "skipped": False,
                "phases_s": PHASES,
                "bytes_per_parameter": summary()["bytes_per_parameter"],
            }
        )
    lines.append({"step": len(losses), "heldout_loss": 2.4, "heldout_nats_per_byte": 2.4})
    return lines + ([{"step": len(losses), "ended": ended}] if ended else [])


def text_of(lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def compare():
    rows = []
    for devices in (1, 2, 4):
        for column, update in (("base", 8.0), ("su+o:csd.state=compact", 6.0 / devices)):
            total = 1.5 + update
            rows.append(
                summary(
                    column=column,
                    devices=devices,
                    links={"scale": 0.025},
                    speedup_over_base=9.5 / total,
                    speedup_over_first_base=9.5 / total,
                    phases_s={"forward": 0.5, "backward": 1.0, "update": update, "total": total},
                    predicted_s={
                        "forward": 0.5,
                        "backward": 1.0,
                        "update": update * 0.95,
                        "total": 1.5 + update * 0.95,
                    },
                    predicted_speedup_over_base=9.5 / total,
                )
            )
    return rows


def plans():
    return [
        {
            "choices_costed": 3,
            "nodes": nodes,
            "devices": 10 * nodes,
            "step_s": 4.0 / nodes,
            "tokens_per_s": 1e5 * nodes,
            "binds": "device",
            "terms_s": {"T_fwd": 1.0},
            "choice": {"codec": "q4"},
            "gain_if_twice_as_fast": {"device": 0.4},
        }
        for nodes in (1, 4)
    ]


def experiment():
    rows = [
        {
            "origin": origin,
            "column": column,
            "devices": devices,
            "step_s": factor * math.sqrt(8 / devices),
            "modelled_step_s": 0.9 * factor,
            "ranks": 1,
        }
        for origin, column, factor in (
            ("measured", "su+o", 2.0),
            ("shaped", "ours", 1.5),
            ("simulated", "torus", 1.2),
            ("published", "theirs", 1.0),
        )
        for devices in (1, 2, 4, 8)
    ]
    return {
        "kind": "nearstep experiment",
        "title": "A <title>",
        "commit": "abc",
        "config": "c.toml",
        "site": "s",
        "cores": 2,
        "command": "x",
        "notes": ["a note"],
        "rows": rows,
        "columns": [
            {"key": key, "name": key, "format": form}
            for key, form in (("column", ""), ("devices", ""), ("step_s", ".2f"), ("modelled_step_s", ".2f"))
        ],
        "plots": [
            {
                "title": "Steps",
                "x": "devices",
                "y": ["step_s", "modelled_step_s"],
                "series": "column",
                "x_name": "n",
                "y_name": "s",
                "log": log,
            }
            for log in (False, True)
        ],
    }


def write_all(folder):
    """A folder with one result of each kind, and a file that is none."""
    contents = {
        "run.json": summary(),
        "compare.json": compare(),
        "plan.json": plans(),
        "experiment.json": experiment(),
        "other.json": {"x": 1},
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "steps.jsonl").write_text(text_of(metrics_lines(ended="finished")))
