// Conversions to torch, and small computations with tensors. Used by the other files of model.
#include "model/torch_types.hpp"

#include "base/error.hpp"
#include "memory/gpu.hpp"

#include <ATen/ATen.h>

#include <algorithm>

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

at::Tensor token_tensor(std::span<const std::int32_t> tokens, int rows, int columns,
                        const c10::Device& device) {
    at::Tensor tensor = at::empty({rows, columns}, at::kLong);
    std::ranges::copy(tokens, tensor.mutable_data_ptr<std::int64_t>());
    return tensor.to(device);
}

// Torch's own addition of two formats is slower on a GPU.
void add_to(const at::Tensor& sum, const at::Tensor& gradient) {
    if (sum.is_cuda() && memory::gpus() > 0 && sum.is_contiguous() && gradient.is_contiguous()) {
        auto* const sums = sum.mutable_data_ptr<float>();
        add_on_gpu({sums, static_cast<std::size_t>(sum.numel())}, sums, Dtype::fp32,
                   gradient.const_data_ptr(), dtype_of(gradient.scalar_type()),
                   memory::Stream::of_default());
    } else {
        sum.add_(gradient);
    }
}

std::int32_t draw(const at::Tensor& shares, double place) {
    const auto* share = shares.const_data_ptr<double>();
    double sum = 0;
    std::int32_t token = 0;
    for (; token + 1 < shares.size(0); ++token) {
        sum += share[token];
        if (sum > place) {
            break;
        }
    }
    return token;
}

}  // namespace nearstep::model
