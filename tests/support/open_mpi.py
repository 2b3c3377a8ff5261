"""The environment of Open MPI for processes that tests start, with and without mpirun."""

import itertools
import tempfile

# The variable that names it.
FOLDER = "OMPI_MCA_orte_tmpdir_base"

# Removed when the test ends.
_folders = []
_numbers = itertools.count()


def environment():
    """Returns the environment of one process. Without mpirun the process starts no daemon of Open MPI's and looks for
    no networks, which takes longer than many a run. Such processes give their folders the same names and remove each
    other's, so each gets a folder."""
    if not _folders:
        _folders.append(tempfile.TemporaryDirectory(prefix="nearstep-mpi-"))
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_ess_singleton_isolated": "1",
        FOLDER: f"{_folders[0].name}/{next(_numbers)}",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "vader,self",
    }
