"""``python -m nearstep serve [FOLDER...]``: a rank that holds devices and computes nothing (``nearstep.serve()``)."""

import sys

from . import _ranks
from ._serve import serve

if sys.argv[1:2] != ["serve"]:
    sys.exit("usage: python -m nearstep serve [FOLDER...]")
try:
    serve(sys.argv[2:] or None)
except (ValueError, RuntimeError, OSError) as error:
    print(f"nearstep: {error}", file=sys.stderr, flush=True)
    _ranks.note_failure()  # the others wait for this one
    sys.exit(2 if isinstance(error, ValueError) else 1)
