"""The command nearstep-report."""

import argparse
import pathlib
import signal
import sys

import nearstep_output
from nearstep_output import Mistake
from nearstep_output.options import Parser

from ._files import Metrics, check_writable, gather, is_metrics, is_same_run, read_json, write_whole
from ._tensorboard import open_board

DESCRIPTION = """Makes one HTML page of results: runs, comparisons, plans and experiments, and what bounds a step.
The page loads nothing from elsewhere."""
EPILOG = """examples:
  nearstep report runs                               all results below the folder
  nearstep report summary.json steps.jsonl           what nearstep train --json and --metrics wrote
  nearstep report --follow runs/steps.jsonl          a page that grows with a run under way
  nearstep report runs --tensorboard runs/board      also event files: tensorboard --logdir runs/board"""


class _Parser(Parser):
    def fail(self, sentence):
        raise Mistake(f"{sentence[:1].upper()}{sentence[1:]}{'' if sentence.endswith('?') else '.'}")


def _parser():
    parser = _Parser(
        prog="nearstep report",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "results",
        nargs="*",
        type=pathlib.Path,
        metavar="RESULT",
        help="a folder, or a file of --json, --metrics or an experiment",
    )
    parser.add_argument("--out", type=pathlib.Path, help="the page (default: report.html beside the results)")
    parser.add_argument(
        "--follow",
        type=pathlib.Path,
        metavar="RUN",
        help="a run's --metrics file, or its folder: write the page again as steps come, until the run ends or Ctrl-C",
    )
    parser.add_argument(
        "--every",
        type=float,
        default=3,
        metavar="SECONDS",
        help="with --follow, look for new steps so often (default: 3)",
    )
    parser.add_argument(
        "--tensorboard", type=pathlib.Path, metavar="FOLDER", help="also write the metrics as TensorBoard's event files"
    )
    return parser


def _make(subject, contents, metrics, ignored, **options):
    """The page and the number of its studies."""
    try:
        from ._page import make_page
        from ._studies import studies_of
    except ImportError as error:
        raise Mistake(f"The package {error.name} is not installed: type pip install jinja2 matplotlib.") from error
    studies = studies_of(contents, metrics, ignored)
    return make_page(subject, studies, ignored, **options), len(studies)


def _expect_apart(out, results):
    """Mistake if the page would replace a result."""
    files = [
        file
        for result in results
        for file in ((*result.rglob("*.json"), *result.rglob("*.jsonl")) if result.is_dir() else (result,))
    ]
    if nearstep_output.would_replace(out, files):
        raise Mistake(
            f"The page {out} is also a result or belongs to a run, and would be lost: name another file with --out."
        )


def _report(given):
    first = given.results[0]
    out = given.out or (first if first.is_dir() else first.parent) / "report.html"
    contents, metrics, ignored = gather(given.results)
    check_writable(out)
    _expect_apart(out, given.results)
    board = open_board(given.tensorboard) if given.tensorboard else None
    page, count = _make(", ".join(map(str, given.results)), contents, metrics, ignored)
    named = [name for name in ignored if any(name == str(result) for result in given.results)]
    if named:
        raise Mistake(
            f"The file {named[0]} is not a result of nearstep: name what --json, --metrics or an experiment wrote."
        )
    if not count:
        raise Mistake(
            f"{first} has no result of nearstep: name a folder with files of --json and --metrics, or of "
            "cluster/experiments."
        )
    write_whole(out, page)
    nearstep_output.say(f"report of {count} studies: {out}")
    if board:
        if not metrics:
            raise Mistake(f"{first} has no metrics for TensorBoard: name a file that nearstep train --metrics wrote.")
        points = sum(board.add(_inside(name), one) for name, one in metrics.items())
        board.close()
        nearstep_output.say(f"{points} points for TensorBoard: tensorboard --logdir {given.tensorboard}")


def _inside(name):
    """The path of a metrics file as one below TensorBoard's folder."""
    return pathlib.PurePath(*(part for part in pathlib.PurePath(name).with_suffix("").parts if part not in ("/", "..")))


def _metrics_of(run):
    """The metrics file of a run: `run` itself, or the newest below it."""
    if not run.is_dir():
        return run
    found = [path for path in run.rglob("*.jsonl") if is_metrics(path)]
    if not found:
        raise Mistake(
            f"The folder {run} has no metrics file: start the run with --metrics FILE.jsonl and name the file."
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def _summary_of(metrics):
    """{name: summary} of the run if it lies beside its metrics."""
    for path in sorted(metrics.path.parent.glob("*.json")):
        try:
            content = read_json(path)
        except Mistake:
            continue
        if isinstance(content, dict) and is_same_run(content, metrics):
            return {path.name: content}
    return {}


def _follow(given):
    if not 0.1 <= given.every <= 3600:
        raise Mistake(f"--every is {given.every:g}: give 0.1 to 3600 seconds.")
    metrics = Metrics(_metrics_of(given.follow))
    metrics.read()
    # Signals wait for the loop below, so that none comes in the middle of a page, or between it and the loop.
    ends = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    out = given.out or metrics.path.parent / "report.html"
    check_writable(out)
    _expect_apart(out, [metrics.path])
    board = open_board(given.tensorboard) if given.tensorboard else None

    def write(status, refresh_s=0):
        summary = {} if refresh_s else _summary_of(metrics)
        write_whole(
            out, _make(metrics.path, summary, {metrics.path.name: metrics}, [], status=status, refresh_s=refresh_s)[0]
        )
        if board:
            board.add(metrics.path.stem, metrics)

    write("running", max(1, round(given.every)))
    nearstep_output.say(f"following {metrics.path}: open {out}; Ctrl-C ends this, not the run")
    while not metrics.ended and signal.sigtimedwait(ends, given.every) is None:
        if metrics.read() and not metrics.ended:
            write("running", max(1, round(given.every)))
    write(metrics.ended or "not followed any more")
    if board:
        board.close()
    nearstep_output.say(f"{f'the run has {metrics.ended}' if metrics.ended else 'ended'}: {out}")


def _act(arguments) -> None:
    given = _parser().parse_args(arguments)
    if given.follow and given.results:
        raise Mistake("--follow takes one run and no other results: leave the others out.")
    if given.follow:
        _follow(given)
    elif given.results:
        _report(given)
    else:
        raise Mistake("Name a folder or files with results, or a run with --follow: see nearstep report --help.")


def main(arguments=None) -> int:
    return nearstep_output.code_of("nearstep report", lambda: _act(arguments))
