// Converts our types to torch's. Only source files include torch's headers.
#pragma once

#include "base/dtype.hpp"
#include "model/compute_device.hpp"

#include <cstdint>

namespace c10 {
struct Device;
enum class ScalarType : std::int8_t;
}  // namespace c10

namespace nearstep::model {

c10::ScalarType scalar_type(Dtype dtype);
Dtype dtype_of(c10::ScalarType type);
c10::Device torch_device(const ComputeDevice& device);

}  // namespace nearstep::model
