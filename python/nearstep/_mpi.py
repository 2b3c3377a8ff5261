"""Loads Open MPI where there may be several ranks: the engine is not linked with it. Imported by __init__.py before the
engine, which says so if there is none when it would start it."""

from nearstep_run import _open_mpi

if _open_mpi.may_have_ranks():
    _open_mpi.find_library()
