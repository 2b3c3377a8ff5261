// How fast a device multiplies matrices: the ceiling of a model's computation.
#pragma once

#include "base/dtype.hpp"
#include "model/compute_device.hpp"

namespace nearstep::model {

// Operations per second of a large matrix product on the device, in the given format: the best of
// three, measured in about 10 ms. Ranks that share a device measure it at the same time.
double measure_product_rate(const ComputeDevice& device, Dtype compute);

}  // namespace nearstep::model
