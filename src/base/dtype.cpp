#include "base/dtype.hpp"

namespace nearstep {

const char* name_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::fp32:
            return "fp32";
        case Dtype::bf16:
            return "bf16";
        case Dtype::fp16:
            return "fp16";
    }
    return "unknown";
}

float from_fp16(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
    const std::uint32_t magnitude = half & 0x7FFFU;
    if (magnitude >= 0x7C00U) {  // infinity, NaN
        return float_of(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13U));
    }
    if (magnitude >= 0x0400U) {
        return float_of(sign | ((magnitude << 13U) + 0x38000000U));
    }
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24F;
    return float_of(sign | bits_of(subnormal));
}

std::uint16_t to_fp16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16U) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    std::uint32_t half = 0;
    if (magnitude > 0x7F800000U) {
        half = 0x7E00U | ((magnitude >> 13U) & 0x3FFU);
    } else if (magnitude >= 0x477FF000U) {  // 65520 and above
        half = 0x7C00U;
    } else if (magnitude >= 0x38800000U) {  // normal in fp16
        half = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13U) & 1U)) >> 13U;
    } else {
        // Adding 0.5 puts the subnormal's last place at that of the sum, so the addition rounds it.
        half = bits_of(float_of(magnitude) + 0.5F) - bits_of(0.5F);
    }
    return static_cast<std::uint16_t>(sign | half);
}

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
