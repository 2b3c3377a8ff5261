#include "mpi/cuda_support.hpp"

namespace nearstep::mpi {

CudaSupport cuda_support() { return CudaSupport::unknown; }

}  // namespace nearstep::mpi
