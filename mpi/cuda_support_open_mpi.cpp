#include "mpi/cuda_support.hpp"

// Includes mpi.h, which must precede mpi-ext.h.
#include "mpi/call.hpp"

#include <mpi-ext.h>

namespace nearstep::mpi {

CudaSupport cuda_support() {
    if (&MPIX_Query_cuda_support == nullptr) {
        return CudaSupport::unknown;
    }
    return MPIX_Query_cuda_support() != 0 ? CudaSupport::yes : CudaSupport::no;
}

}  // namespace nearstep::mpi
