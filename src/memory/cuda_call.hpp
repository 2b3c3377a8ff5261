// The check around every CUDA call. Only .cu sources include this header.
#pragma once

#include "base/error.hpp"

#include <cuda_runtime.h>

namespace nearstep::memory {

// Throws CudaError with CUDA's own text unless `code` is success.
void check(cudaError_t code, const Where& where = Where());

// Call after a kernel launch: throws if it failed.
inline void check_launch(const Where& where = Where()) { check(cudaGetLastError(), where); }

}  // namespace nearstep::memory
