#include "mpi/cuda_support.hpp"

// mpi.h, which mpi-ext.h needs to stand before it.
#include "mpi/call.hpp"

#include <mpi-ext.h>

namespace nearstep::mpi {

CudaSupport cuda_support() {
    return MPIX_Query_cuda_support() != 0 ? CudaSupport::yes : CudaSupport::no;
}

}  // namespace nearstep::mpi
