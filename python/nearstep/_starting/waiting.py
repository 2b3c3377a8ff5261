"""Shows in a notebook how far the start is, which reads or writes all state. Used by begin.py and _session.py."""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings

_SECONDS = 0.2  # between two looks; a start that is shorter shows nothing


def _is_in_notebook() -> bool:
    """Whether a kernel runs this program, rather than a terminal."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    return getattr(shell, "kernel", None) is not None


def _follow(conductor, ended: threading.Event) -> None:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return
    bar = None
    while not ended.wait(_SECONDS):
        if bar is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # tqdm's, about widgets that are not there: it prints text then
                bar = tqdm(total=100, desc="nearstep: optimizer state", unit="%", leave=False)
        bar.update(min(100, round(100 * conductor.start_share)) - bar.n)
    if bar is not None:
        bar.close()


@contextlib.contextmanager
def shown(conductor):
    """While the block runs."""
    if conductor.rank != 0 or not _is_in_notebook():
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(conductor, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
