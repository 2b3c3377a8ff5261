// The check around every call of CUDA. Only sources in .cu include this header.
#pragma once

#include "base/error.hpp"

#include <cuda_runtime.h>

namespace nearstep::memory {

// Throws CudaError with CUDA's own text unless `code` is success.
void check(cudaError_t code, const Where& where = Where());

// After a kernel's launch: throws if it could not be launched.
inline void check_launch(const Where& where = Where()) { check(cudaGetLastError(), where); }

}  // namespace nearstep::memory
