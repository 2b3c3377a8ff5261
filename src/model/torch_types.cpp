#include "model/torch_types.hpp"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace nearstep::model {

c10::ScalarType scalar_type(Dtype dtype) {
    if (dtype == Dtype::fp32) {
        return c10::ScalarType::Float;
    }
    return dtype == Dtype::bf16 ? c10::ScalarType::BFloat16 : c10::ScalarType::Half;
}

c10::Device torch_device(const ComputeDevice& device) {
    return device.is_gpu()
               ? c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(*device.gpu))
               : c10::Device(c10::DeviceType::CPU);
}

}  // namespace nearstep::model
