"""Counts what this process may use of its machine, as src/base/machine.hpp does. Used by the launchers, and by
launch/build before there is a program: run as a script, it prints cores and bytes of memory. Standard library only."""

import os
import pathlib


def _text(path) -> str:
    try:
        return pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int:
    """The digits; 0 for other words, such as max."""
    return int(text) if text.strip().isdecimal() and len(text.strip()) < 19 else 0


def _cgroups(controller: str, root: str) -> list:
    """The folders of this process's cgroup and its ancestors that may limit a controller."""
    paths = {name: line[2] for line in _lines(f"{root}/proc/self/cgroup", ":", 2) for name in line[1].split(",")}
    found = []
    mounts = [line for line in _text(f"{root}/proc/self/mountinfo").splitlines() if " - cgroup" in line]
    for front, _, back in (line.partition(" - ") for line in mounts):
        kind, *_, options = back.split()
        if kind == "cgroup2" or (kind == "cgroup" and controller in options.split(",")):
            mount_root, top = front.split()[3:5]
            path, base = paths.get("" if kind == "cgroup2" else controller, ""), mount_root.rstrip("/") + "/"
            inside = path[len(base) - 1 :] if path.startswith(base) and ".." not in path else "/"
            folders = [pathlib.Path(inside), *pathlib.Path(inside).parents]
            found += [folder for one in folders if (folder := pathlib.Path(f"{root}{top}{one}")).is_dir()]
    return found


def _lines(path, separator, most) -> list:
    return [line.split(separator, most) for line in _text(path).splitlines() if line.count(separator) >= most]


def available_bytes(root: str = "") -> int:
    """Bytes that can be used without swapping. ``root``: the folder that holds /proc and /sys, for tests."""
    least = int(_text(f"{root}/proc/meminfo").split("MemAvailable:")[1].split()[0]) * 1024
    for folder in _cgroups("memory", root):
        limits = [_number(_text(folder / f"memory.{name}")) for name in ("max", "high", "limit_in_bytes")]
        if limit := min(filter(None, limits), default=0):
            used = _number(_text(folder / "memory.current")) or _number(_text(folder / "memory.usage_in_bytes"))
            stat = dict(_lines(folder / "memory.stat", " ", 1))
            before = "total_" if "total_inactive_file" in stat else ""  # version 1 counts descendants there
            droppable = sum(_number(stat.get(f"{before}{name}_file", "")) for name in ("inactive", "active"))
            least = min(least, max(limit - max(used - droppable, 0), 0))
    return least


def usable_cores(root: str = "") -> int:
    """CPUs that this process may use at once, at least 1. OMP_NUM_THREADS has no say."""
    cores = len(os.sched_getaffinity(0))
    for folder in _cgroups("cpu", root):
        both = _text(folder / "cpu.max") or " ".join(
            _text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        )
        quota, period = map(_number, (both.split() + ["", ""])[:2])
        if quota and period:
            cores = min(cores, quota // period)
    return max(cores, 1)


if __name__ == "__main__":
    print(usable_cores(), available_bytes())
