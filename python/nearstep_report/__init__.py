"""nearstep-report: one HTML page of runs, comparisons, plans and experiments. Needs Jinja2 and Matplotlib, no
PyTorch.
"""

from ._command import main

__all__ = ["main"]
