// Converts our types to torch's, and computes with its tensors. Only source files include torch's
// headers.
#pragma once

#include "base/dtype.hpp"
#include "model/compute_device.hpp"

#include <cstdint>
#include <span>

namespace at {
class Tensor;
}
namespace c10 {
struct Device;
enum class ScalarType : std::int8_t;
}  // namespace c10

namespace nearstep::model {

c10::ScalarType scalar_type(Dtype dtype);
Dtype dtype_of(c10::ScalarType type);
c10::Device torch_device(const ComputeDevice& device);

// rows x columns indices on the device.
at::Tensor token_tensor(std::span<const std::int32_t> tokens, int rows, int columns,
                        const c10::Device& device);

// sum += gradient, in fp32.
void add_to(const at::Tensor& sum, const at::Tensor& gradient);

// The first token whose cumulative probability exceeds `place`, in [0, 1). `shares`: on the host,
// in double.
std::int32_t draw(const at::Tensor& shares, double place);

}  // namespace nearstep::model
