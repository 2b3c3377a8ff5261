// What torch takes of a GPU's memory.
#pragma once

#include "model/compute_device.hpp"

#include <cstddef>

namespace nearstep::model {

// Gives back what torch holds unused of the GPU's memory, and counts anew.
void begin_gpu_memory_use(const ComputeDevice& device);

struct GpuMemoryUse {
    std::size_t most_allocated_bytes = 0;  // by tensors at once
    std::size_t most_reserved_bytes = 0;   // of the GPU, for them
};

// Since begin_gpu_memory_use(). `device` is a GPU that torch was used on.
GpuMemoryUse gpu_memory_use(const ComputeDevice& device);

// From now on torch throws instead of taking more. Where torch was built without CUDA nothing
// happens.
void limit_gpu_memory(const ComputeDevice& device, std::size_t bytes);

}  // namespace nearstep::model
