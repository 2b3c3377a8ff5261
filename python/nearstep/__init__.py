"""Training with the optimizer state in storage, and the optimizer step near it.

    import itertools, nearstep
    opt = nearstep.AdamW(model, lr=3e-4, path="/nvme0/run")
    start = opt.resume()  # the number of steps done: 0, or those that were durable when the last run ended
    for batch in itertools.islice(loader, start, None):
        model(**batch).loss.backward()
        opt.step()
        opt.zero_grad()

``python train.py`` is one rank; ``nearstep-run --nproc-per-node 4 train.py`` starts four, whose gradients the engine
averages. Ranks that only hold devices call ``nearstep.serve()``.
"""

from . import _mpi  # loads Open MPI where there may be several ranks, before the engine is loaded
from . import _ranks  # sets RANK, WORLD_SIZE and LOCAL_RANK
from . import _distributed
from ._optimizer import Optimizer
from ._model.empty import empty
from ._model.groups import groups
from ._streaming.stream import Stream
from ._serve import serve
from . import _optimizers
from ._optimizers import *
from ._engine import version as _version

__version__ = _version()
__all__ = ["Optimizer", "Stream", "empty", "groups", "serve"]
__all__ += _optimizers.__all__
