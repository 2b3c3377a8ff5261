// Limits the GPU memory that torch takes. Called by train/gpu_share.cpp; a build without CUDA has
// gpu_limit_none.cpp instead.
#include "base/error.hpp"
#include "memory/gpu.hpp"
#include "model/gpu_memory.hpp"
#include "model/torch_types.hpp"

#include <ATen/Context.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>

namespace nearstep::model {

void limit_gpu_memory(const ComputeDevice& device, std::size_t bytes) {
    expects(device.is_gpu() && memory::gpus() > 0, "the memory is a GPU's");
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);  // creates the allocator
    const auto total = static_cast<double>(memory::room_of_gpu().total_bytes);
    c10::cuda::CUDACachingAllocator::setMemoryFraction(
        std::min(1.0, static_cast<double>(bytes) / total), torch_device(device).index());
}

}  // namespace nearstep::model
