// The check around every MPI call. Only sources in mpi/ include this header.
#pragma once

#include "base/error.hpp"

#include <mpi.h>

namespace nearstep::mpi {

// Throws MpiError with MPI's own text unless `code` is success.
void check(int code, const Where& where = Where());

}  // namespace nearstep::mpi
