"""Keeps an interrupt from the middle of what belongs together. Used where a step passes to the engine and its values
come back, by _session.py, intake.py and parameters.py."""

from __future__ import annotations

import contextlib
import signal
import threading


@contextlib.contextmanager
def undivided():
    """Ctrl-C (SIGINT) in this block raises KeyboardInterrupt after it, so that a notebook can go on in its next cell.
    The block must not wait for another rank, since nobody could interrupt that."""
    came = []
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
