// Whether MPI can send from and receive into the memory of CUDA devices.
#pragma once

namespace nearstep::mpi {

enum class CudaSupport { no, yes, unknown };

// For the MPI library in use; unknown if it does not tell.
CudaSupport cuda_support();

}  // namespace nearstep::mpi
