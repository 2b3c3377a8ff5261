#include "model/torch_types.hpp"

#include "base/error.hpp"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace nearstep::model {

c10::ScalarType scalar_type(Dtype dtype) {
    if (dtype == Dtype::fp32) {
        return c10::ScalarType::Float;
    }
    return dtype == Dtype::bf16 ? c10::ScalarType::BFloat16 : c10::ScalarType::Half;
}

Dtype dtype_of(c10::ScalarType type) {
    for (const Dtype dtype : {Dtype::fp32, Dtype::bf16, Dtype::fp16}) {
        if (type == scalar_type(dtype)) {
            return dtype;
        }
    }
    throw ContractError("A tensor has the format of parameters.");
}

c10::Device torch_device(const ComputeDevice& device) {
    return device.is_gpu()
               ? c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(*device.gpu))
               : c10::Device(c10::DeviceType::CPU);
}

}  // namespace nearstep::model
