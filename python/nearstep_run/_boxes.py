"""Tells the boxes of ten lines that mpirun prints when ranks end from the ranks' own words, which pass at once.
Used by __init__.py."""

import re

_EDGE = b"-" * 74
# Phrases of a box that says no more than that a rank has ended: Open MPI 4, then 5.
_ENDS = re.compile(
    rb"Primary job +terminated|detected that one or more processes exited|noticed that process rank|"
    rb"MPI_ABORT was invoked|has exited due to process rank|ORTE_ERROR_LOG"
)
# No rank has begun, since mpirun did not start its own program on all hosts.
_NO_START = re.compile(rb"unable to reliably +start one or more daemons|daemon has unexpectedly failed +after launch")
_RANK = re.compile(
    rb"process rank (\d+)|on rank (\d+) |Process name:\s*\[[^\]]*[,@]\d+,(\d+)\]|Process name:\s*\[\[[^\]]*\],(\d+)\]"
)


class Boxes:
    """``add`` takes bytes of mpirun's stderr and returns those to show. Afterwards ``rank`` is the one that ended
    first, or None if no box names it. ``has_begun`` is false if a box says that a host was not reached, ``has_ended``
    is true if one says that a rank has ended."""

    def __init__(self):
        self.rank: int | None = None
        self.has_begun = True
        self.has_ended = False
        self._held = b""  # begins at a line's start with an edge, or with a part of one
        self._at_line_start = True

    def add(self, data: bytes) -> bytes:
        shown, rest = b"", self._held + data
        self._held = b""
        while rest:
            line, end, after = rest.partition(b"\n")
            is_edge = self._at_line_start and line == _EDGE and end
            box, closing, behind = after.partition(_EDGE + b"\n") if is_edge else (b"", b"", b"")
            if (is_edge and not closing) or (self._at_line_start and not end and _EDGE.startswith(line)):
                self._held = rest
                break
            if not is_edge:
                shown += line + end
            elif not self._is_of_end(box):
                shown += line + end + box + closing
            rest = behind if is_edge else after
            self._at_line_start = bool(end)
        return shown

    def rest(self) -> bytes:
        """Returns the text that is still held when mpirun has ended."""
        return b"" if self._is_of_end(self._held) else self._held

    def _is_of_end(self, box: bytes) -> bool:
        self.has_begun = self.has_begun and not _NO_START.search(box)
        found = _RANK.search(box)
        if found and self.rank is None:
            self.rank = int(next(number for number in found.groups() if number is not None))
        is_of_end = bool(_ENDS.search(box))
        self.has_ended = self.has_ended or is_of_end
        return is_of_end
