#include "model/product_rate.hpp"

#include "base/stopwatch.hpp"
#include "model/torch_types.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace nearstep::model {

namespace {

constexpr std::int64_t kLeast = 256;
constexpr std::int64_t kMost = 4096;

// The best rate of `times` products of square matrices with `size` rows.
double rate_of(std::int64_t size, int times, const at::TensorOptions& options) {
    const at::Tensor left = at::full({size, size}, 0.5, options);
    const at::Tensor right = at::full({size, size}, 0.5, options);
    const double operations = 2 * std::pow(static_cast<double>(size), 3);
    double best = 0;
    for (int i = 0; i < times; ++i) {
        Stopwatch watch;
        at::matmul(left, right)[0][0].item<float>();  // waits for a GPU
        best = std::max(best, operations / watch.lap());
    }
    return best;
}

}  // namespace

double measure_product_rate(const ComputeDevice& device, Dtype compute) {
    const auto options =
        at::TensorOptions().dtype(scalar_type(compute)).device(torch_device(device));
    const double estimate = rate_of(kLeast, 2, options);
    // A product of about 2 ms.
    const auto size = static_cast<std::int64_t>(std::cbrt(estimate * 2e-3 / 2)) / 64 * 64;
    return rate_of(std::clamp(size, kLeast, kMost), 3, options);
}

}  // namespace nearstep::model
