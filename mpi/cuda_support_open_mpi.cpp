#include "mpi/cuda_support.hpp"

#include <mpi-ext.h>
#include <mpi.h>

namespace nearstep::mpi {

CudaSupport cuda_support() {
    return MPIX_Query_cuda_support() != 0 ? CudaSupport::yes : CudaSupport::no;
}

}  // namespace nearstep::mpi
