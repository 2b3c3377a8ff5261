"""A run's metrics as event files that TensorBoard shows. Used by _command.py."""

from nearstep_output import Mistake


def open_board(folder):
    """Writes what Metrics objects have read. Mistake if TensorBoard is missing."""
    try:
        from tensorboard.summary import Writer
    except ImportError as error:
        raise Mistake(
            "The package tensorboard is not installed: type pip install tensorboard, or leave out --tensorboard."
        ) from error
    return Board(folder, Writer)


class Board:
    """Writes files of TensorBoard's: one sub-folder for each run, one scalar for each number of the metrics, such as
    phases_s/update."""

    def __init__(self, folder, writer):
        self._folder, self._new_writer = folder, writer
        self._open = {}  # by run: the writer, and how many points of each series are written

    def add(self, name, metrics):
        """Writes the points that are new since the last call; returns their number."""
        if name not in self._open:
            folder = self._folder / name
            folder.mkdir(parents=True, exist_ok=True)
            self._open[name] = (self._new_writer(str(folder)), {})
        writer, written = self._open[name]
        added = 0
        for tag, (steps, values) in metrics.series.items():
            first = written.get(tag, 0) if written.get(tag, 0) <= len(steps) else 0
            for step, value in zip(steps[first:], values[first:]):
                writer.add_scalar(tag, value, int(step))
                added += 1
            written[tag] = len(steps)
        writer.flush()
        return added

    def close(self):
        for writer, _ in self._open.values():
            writer.close()
