// Torch without CUDA uses no GPU memory.
#include "model/gpu_memory.hpp"

namespace nearstep::model {

void limit_gpu_memory(const ComputeDevice& /*device*/, std::size_t /*bytes*/) {}

}  // namespace nearstep::model
