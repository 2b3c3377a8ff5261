// Converts numbers between formats. Used wherever parameters and gradients are read or written.
#include "base/dtype.hpp"

namespace nearstep {

void convert_from_fp32(const float* from, Dtype dtype, void* to, std::size_t count) {
    if (dtype == Dtype::fp32) {
        std::memcpy(to, from, count * sizeof(float));
        return;
    }
    auto* out = static_cast<unsigned char*>(to);
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint16_t half = dtype == Dtype::bf16 ? to_bf16(from[i]) : to_fp16(from[i]);
        std::memcpy(out + 2 * i, &half, sizeof half);
    }
}

void convert_to_fp32(Dtype dtype, const void* from, float* to, std::size_t count) {
    if (dtype == Dtype::fp32) {
        std::memcpy(to, from, count * sizeof(float));
        return;
    }
    const auto* in = static_cast<const unsigned char*>(from);
    for (std::size_t i = 0; i < count; ++i) {
        std::uint16_t half = 0;
        std::memcpy(&half, in + 2 * i, sizeof half);
        to[i] = dtype == Dtype::bf16 ? from_bf16(half) : from_fp16(half);
    }
}

}  // namespace nearstep
