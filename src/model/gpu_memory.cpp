// Asks torch how much GPU memory it uses. Called by train/gpu_share.cpp.
#include "model/gpu_memory.hpp"

#include "base/error.hpp"
#include "model/torch_types.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>

namespace nearstep::model {

void begin_gpu_memory_use(const ComputeDevice& device) {
    expects(device.is_gpu(), "the memory is a GPU's");
    c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
    if (allocator->initialized()) {
        allocator->emptyCache();
        allocator->resetPeakStats(torch_device(device).index());
    }
}

GpuMemoryUse gpu_memory_use(const ComputeDevice& device) {
    expects(device.is_gpu(), "the memory is a GPU's");
    const auto statistics = c10::getDeviceAllocator(c10::DeviceType::CUDA)
                                ->getDeviceStats(torch_device(device).index());
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return {
        .most_allocated_bytes = static_cast<std::size_t>(statistics.allocated_bytes.at(all).peak),
        .most_reserved_bytes = static_cast<std::size_t>(statistics.reserved_bytes.at(all).peak)};
}

}  // namespace nearstep::model
