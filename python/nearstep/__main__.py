"""``python -m nearstep serve [FOLDER...]``: a rank that holds devices and computes nothing, see ``nearstep.serve()``."""

import sys

from ._serve import serve

if sys.argv[1:2] != ["serve"]:
    sys.exit("usage: python -m nearstep serve [FOLDER...]")
serve(sys.argv[2:] or None)
