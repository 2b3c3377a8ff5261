"""Finds what bounds a step, and what to add next, in the numbers of a study. Used by _runs.py and _studies.py."""

from ._values import amount, at, formatted, number, words

# Advice if this resource is the bottleneck, by the planner's name for it.
REMEDIES = {
    "GPU": "faster or more GPUs: storage and links keep up",
    "GPU links": "a faster link between GPU and host, or parameters that stay on the GPU",
    "device": "more CSDs in each node (or a narrower csd.state)",
    "host link": 'a wider host link, gather.codec = "delta", or CSDs in more nodes',
    "network": 'a faster network, gather.codec = "delta", or fewer nodes with more CSDs each',
    "host memory": "more host memory bandwidth, or payloads of fewer bytes",
}
PHASES = {"forward_s": "forward", "backward_s": "backward and gradients", "update_s": "the update"}


def count(number_of, noun):
    return f"{number_of:g} {noun}{'' if number_of == 1 else 's'}"


def percent(share):
    return f"{100 * share:.0f} %"


def _longest_phase(row):
    """The longest phase of a step, in words, and its share."""
    name, seconds = max(((name, amount(row.get(key))) for key, name in PHASES.items()), key=lambda one: one[1])
    return name, seconds / row["step_s"]


def _label(row):
    """Returns what the rows of one sweep have in common; empty if the row belongs to no sweep."""
    column, traffic = words(row.get("column")), words(row.get("gpu_traffic"))
    if not column:
        return words(row.get("series"))
    return f"{column}, GPU traffic {traffic}," if traffic else column


def of_plans(rows):
    """A sentence for each row at which the bottleneck of its series changes. `rows`: of `nearstep plan --json` or of an
    experiment that plans."""
    findings, last = [], {}
    for row in rows:
        binds, series = words(row.get("binds")), words(row.get("series"))
        if not binds or (series and last.get(series) == binds):
            continue
        last[series] = binds
        nodes = f"{count(amount(row.get('nodes')), 'node')}{' and more' if series else ''}"
        gain = number(at(row, "gain_if_twice_as_fast", binds))
        sentence = (
            f"{series + ', ' if series else ''}{nodes} with {count(amount(row.get('devices')), 'device')}: {binds} "
            "binds"
        )
        if gain is not None:
            sentence += f", twice as fast it shortens the step by {percent(gain)}"
        findings.append(("modelled", f"{sentence}. What to add next: {REMEDIES.get(binds, binds)}."))
    return findings


def _of_cost(label, sweep):
    """Returns the finding about rows that know what a step costs."""
    devices = sorted(sweep)
    cheapest = min(devices, key=lambda count: amount(sweep[count].get("relative_cost")))
    cost = formatted(amount(sweep[cheapest].get("relative_cost")), ".3g")
    rest = "The next device may still pay." if cheapest == devices[-1] else "Devices beyond cost more than they save."
    return (
        f"{label}: of {len(devices)} numbers of devices {cheapest:g} give the cheapest step, relative cost {cost}. "
        f"{rest}"
    )


def _of_sweep(label, sweep):
    devices = sorted(sweep)
    row = sweep[devices[-1]]
    phase, share = _longest_phase(row)
    ranks = amount(row.get("ranks"))
    place = f" with {count(devices[-1], 'device')}" if devices[-1] else ""
    sentence = (
        f"{label}{place}{f' and {ranks:g} ranks' if ranks > 1 else ''}: {phase} takes {percent(share)} of a step of "
        f"{formatted(row['step_s'], '.3g')} s"
    )
    modelled = number(row.get("modelled_update_s"))
    if phase == "the update" and modelled:
        sentence += (
            f"; the rates of its links explain {percent(min(1, modelled / row['update_s']))} of the update (modelled)"
        )
    if len(devices) < 2:
        return sentence + "."
    gain = 1 - row["step_s"] / sweep[devices[-2]]["step_s"]
    added = count(devices[-1] - devices[-2], "device")
    if gain < 0.03:
        return f"{sentence}; the last {added} did not shorten it. More devices bring no more here."
    sentence += f"; the last {added} shortened it by {percent(gain)}. "
    if phase == "the update":
        return sentence + "The next device still pays."
    return sentence + "Compute and gradients now take most: faster GPUs or narrower gradients pay more than devices."


def of_light(label, summary):
    """How near a run came to the least time that its step needs; empty if it does not say."""
    bound, share = words(at(summary, "speed_of_light", "bound")), number(at(summary, "speed_of_light", "share"))
    least = number(at(summary, "speed_of_light", f"{bound}_s"))
    if not share or not least:
        return []
    return [
        (
            "modelled",
            f"{label}: a step takes at least {formatted(least, '.3g')} s, which {bound} bounds; the run reached "
            f"{percent(share)} of that speed.",
        )
    ]


def of_steps(rows):
    """`rows`: measured or shaped, with column (or series), devices, forward_s, backward_s, update_s and step_s. Of rows
    with equal column and devices the last counts."""
    sweeps = {}
    for row in rows:
        label, origin = _label(row), row.get("origin")
        if label and amount(row.get("step_s")) > 0 and origin in ("measured", "shaped"):
            sweeps.setdefault((origin, label), {})[amount(row.get("devices"))] = row
    return [
        (origin, (_of_cost if "relative_cost" in next(iter(sweep.values())) else _of_sweep)(label, sweep))
        for (origin, label), sweep in sweeps.items()
    ]
