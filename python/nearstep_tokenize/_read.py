"""Maps the tokens of a token file (docs/formats/token-file.md). Used by __init__.py."""

from __future__ import annotations

import os
import stat
import struct

MAGIC = b"nearstep tokens\n"
HEADER_BYTES = 4096


def read_tokens(path):
    """The tokens of all documents, one after another, as a read-only NumPy array that maps the file. Raises ValueError
    if ``path`` is no token file, or is cut off."""
    import numpy

    with open(
        path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    ) as file:  # a pipe may have no writer
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no regular file: name one of nearstep-tokenize.")
        head = file.read(len(MAGIC) + 24)
        size = os.fstat(file.fileno()).st_size
    if not head.startswith(MAGIC) or len(head) < len(MAGIC) + 24:
        raise ValueError(f"{path} is no token file: write one with nearstep-tokenize.")
    version, width, count = struct.unpack("<3Q", head[len(MAGIC) :])
    if version != 1 or width not in (2, 4):
        raise ValueError(
            f"{path} is a token file of version {version}: write it again with this version's nearstep-tokenize."
        )
    if size < HEADER_BYTES + width * count:
        raise ValueError(f"{path} is cut off: write it again with nearstep-tokenize.")
    return numpy.memmap(path, dtype=f"<u{width}", mode="r", offset=HEADER_BYTES, shape=(count,))
