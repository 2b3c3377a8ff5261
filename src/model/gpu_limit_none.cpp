// Stands in for gpu_limit_cuda.cpp where PyTorch has no CUDA: no GPU memory is used. Used by
// gpu_memory.hpp's callers.
#include "model/gpu_memory.hpp"

namespace nearstep::model {

void limit_gpu_memory(const ComputeDevice& /*device*/, std::size_t /*bytes*/) {}

}  // namespace nearstep::model
