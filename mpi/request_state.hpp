// The MPI side of a pending transfer. Only sources in mpi/ include this header.
#pragma once

#include "mpi/call.hpp"
#include "mpi/communicator.hpp"

namespace nearstep::mpi {

struct Request::State {
    MPI_Request request = MPI_REQUEST_NULL;
    Patience patience;
};

}  // namespace nearstep::mpi
