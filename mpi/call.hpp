// MPI's functions, and the check around every call of one. Only sources in mpi/ include this
// header.
//
// All that Open MPI declares is weak here: what is linked without its library loads without it, and
// finds it if the process has loaded it globally before.
#pragma once

#include "base/error.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): Open MPI's, which mpi.h leaves as it is
#define OMPI_DECLSPEC __attribute__((weak, visibility("default")))
#include <mpi.h>

namespace nearstep::mpi {

// Throws MpiError with MPI's own text unless `code` is success.
void check(int code, const Where& where = Where());

}  // namespace nearstep::mpi
