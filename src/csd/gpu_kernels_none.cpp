// Stands in for csd/gpu_kernels.hpp's functions in a build without CUDA, where no GPU engine can be
// made.
#include "base/error.hpp"
#include "csd/gpu_kernels.hpp"

namespace nearstep::csd {

void update_on_gpu(const GpuTiles& /*tiles*/, CUstream_st* /*stream*/, unsigned /*most*/) {
    throw CudaError("This program was built without CUDA.");
}

}  // namespace nearstep::csd
