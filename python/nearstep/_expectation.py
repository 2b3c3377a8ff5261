"""Estimates the time and wear of updates from the times measured at the start."""

_DAY_S = 86400


def sentence(facts: dict) -> str:
    """``facts`` of the engine: bytes of the state, seconds that reading or writing it took at the start, the devices,
    and the rated TB of a device's drive, or 0."""
    state_bytes, start_s = facts["state_bytes"], facts["start_s"]
    update_s = 2 * start_s  # reads all state and writes it
    unit, name = (1e9, "GB") if state_bytes >= 1e9 else (1e6, "MB")
    line = f"its {state_bytes / unit:.3g} {name} took {start_s:.2g} s, so an update, which reads and writes them, takes about {update_s:.2g} s"
    if facts["rated_tbw"]:
        updates = facts["rated_tbw"] * 1e12 * facts["devices"] / state_bytes
        line += f", and {updates * update_s / _DAY_S:.3g} days of such updates are what its drives are rated for"
    else:
        line += "; with config={'csd.rated_tbw': TB} this line says how long the drives last"
    return line
