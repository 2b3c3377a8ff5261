// Torch's use of GPU memory.
#pragma once

#include "model/compute_device.hpp"

#include <cstddef>

namespace nearstep::model {

// Frees torch's unused GPU memory and resets the peak counters.
void begin_gpu_memory_use(const ComputeDevice& device);

struct GpuMemoryUse {
    std::size_t most_allocated_bytes = 0;  // peak of the tensors' memory
    std::size_t most_reserved_bytes = 0;   // peak of the memory that torch holds for them
};

// Peaks since begin_gpu_memory_use(). `device` is a GPU that torch has used.
GpuMemoryUse gpu_memory_use(const ComputeDevice& device);

// Makes torch throw instead of taking more than `bytes`. Does nothing if torch was built without
// CUDA.
void limit_gpu_memory(const ComputeDevice& device, std::size_t bytes);

}  // namespace nearstep::model
