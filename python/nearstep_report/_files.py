"""Finds and reads results: JSON files, and metrics files of runs. Used by _command.py and _runs.py."""

import array
import json
import os
import pathlib

import nearstep_output
from nearstep_output import Mistake

from ._values import at, number, words

MOST_BYTES = 64 << 20  # of a JSON file


def read_json(path):
    """The content of a JSON file. Mistake if it is none."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise Mistake(f"The file {path} has more than {MOST_BYTES >> 20} MiB: name a result of nearstep.")
        return json.loads(path.read_bytes())
    except OSError as error:
        raise Mistake(
            f"The file {path} cannot be read ({error.strerror}): name a file that exists and is readable."
        ) from error
    except (ValueError, RecursionError) as error:
        raise Mistake(
            f"The file {path} is not JSON ({' '.join(str(error).split())}): name a file that nearstep or an "
            "experiment wrote."
        ) from error


def flat(value, name=""):
    """Yields ("phases_s/update", 0.5) for each number in nested objects."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from flat(below, f"{name}/{key}" if name else str(key))
    elif isinstance(value, bool):
        yield name, float(value)
    elif number(value) is not None:
        yield name, float(value)


class Metrics:
    """The file that `nearstep train --metrics` writes. read() takes in what was added since the last call."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.forget()

    def forget(self):
        self.head = {}
        self.series = {}  # name: (steps, values), in the file's order
        self.ended = None  # "finished" or "stopped"
        self._place, self._file, self._line = 0, None, 0

    def read(self):
        """True if there was something new. A resumed run writes a new file: then all is read again."""
        try:
            with self.path.open("rb") as file:
                about = os.fstat(file.fileno())
                if self._file not in (None, about.st_ino) or about.st_size < self._place:
                    self.forget()
                self._file = about.st_ino
                file.seek(self._place)
                added = file.read()
        except OSError as error:
            raise Mistake(
                f"The file {self.path} cannot be read ({error.strerror}): name what nearstep train --metrics wrote."
            ) from error
        whole = added[: added.rfind(b"\n") + 1]  # the last line may still be on its way
        self._place += len(whole)
        for line in whole.splitlines():
            self._line += 1
            self._take(line)
        return bool(whole)

    def _take(self, line):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            raise Mistake(
                f"Line {self._line} of {self.path} is not a JSON object: name what nearstep train --metrics wrote."
            )
        step = number(content.pop("step", None))
        if step is None:
            self.head.update(content)
            return
        self.ended = words(content.pop("ended", None)) or None
        for name, value in flat(content):
            steps, values = self.series.setdefault(name, (array.array("d"), array.array("d")))
            steps.append(step)
            values.append(value)

    def points(self, name):
        return list(zip(*self.series.get(name, ((), ()))))

    def mean(self, name):
        _, values = self.series.get(name, ((), ()))
        return sum(values) / len(values) if values else 0.0


def is_metrics(path):
    """Whether the first line of a file may be one of a metrics file."""
    try:
        with path.open("rb") as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and ("step" in first or "last_step" in first)


def gather(paths):
    """(JSON contents by name, metrics by name, names of files that are neither). A folder gives what lies below it; its
    unreadable files go to the last list. A named file must be a result."""
    contents, metrics, ignored = {}, {}, []
    for given in map(pathlib.Path, paths):
        if given.is_dir():
            for path in sorted(given.rglob("*.json")) + sorted(given.rglob("*.jsonl")):
                name = str(path.relative_to(given))
                try:
                    _take_file(path, name, contents, metrics)
                except Mistake:
                    ignored.append(name)
        elif given.exists():
            _take_file(given, str(given), contents, metrics)
        else:
            raise Mistake(f"There is no folder or file {given}: name where the results of runs and experiments are.")
    return contents, metrics, ignored


def _take_file(path, name, contents, metrics):
    if not path.is_file():
        raise Mistake(f"{path} is not a file.")
    if path.suffix != ".json" and is_metrics(path):
        metrics[name] = Metrics(path)
        metrics[name].read()
    else:
        contents[name] = read_json(path)


def is_same_run(summary, metrics):
    """Whether a summary and a metrics file are of one run: equal losses at all steps that both have."""
    first, losses = at(summary, "first_step"), at(summary, "losses")
    if (
        number(first) is None
        or not isinstance(losses, list)
        or metrics.head.get("mode", at(summary, "mode")) != at(summary, "mode")
    ):
        return False
    theirs = dict(metrics.points("loss"))
    common = [(loss, theirs[step]) for step, loss in enumerate(losses, int(first)) if step in theirs]
    return bool(common) and all(one == other for one, other in common)


def check_writable(path):
    try:
        nearstep_output.check_writable(path)
    except OSError as error:
        raise Mistake(
            f"The page {path} cannot be written ({error.strerror}): name a file in a folder that exists and is "
            "writable with --out."
        ) from error


def write_whole(path, text):
    """Writes a page."""
    with nearstep_output.open_output(path) as file:
        file.write(text.encode("utf-8", "replace"))
