// Number formats of parameters and gradients, and the conversions between them.
//
// The conversions are C++14 without exceptions, because the FPGA kernels use them too. They round
// to nearest even. Every engine must produce the same bits.
#pragma once

#include "base/host_device.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nearstep {

enum class Dtype { fp32, bf16, fp16 };

// Bytes of one element.
NEARSTEP_HOST_DEVICE constexpr std::size_t size_bytes(Dtype dtype) {
    return dtype == Dtype::fp32 ? 4 : 2;
}

NEARSTEP_HOST_DEVICE inline std::uint32_t bits_of(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

NEARSTEP_HOST_DEVICE inline float float_of(std::uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

NEARSTEP_HOST_DEVICE inline float from_bf16(std::uint16_t half) {
    return float_of(static_cast<std::uint32_t>(half) << 16U);
}

// NaN stays NaN (quiet, with its sign and upper payload). A value that rounds above the largest
// bf16 becomes infinity.
NEARSTEP_HOST_DEVICE inline std::uint16_t to_bf16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
    const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return static_cast<std::uint16_t>((is_nan ? (bits | 0x00400000U) : rounded) >> 16U);
}

// Computes all cases and selects one, so that the compiler can vectorise it.
NEARSTEP_HOST_DEVICE inline float from_fp16(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
    const std::uint32_t magnitude = half & 0x7FFFU;
    const std::uint32_t subnormal =
        bits_of(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 5.9604644775390625e-8F);
    const std::uint32_t normal = (magnitude << 13U) + 0x38000000U;
    const std::uint32_t special = 0x7F800000U | ((magnitude & 0x3FFU) << 13U);  // infinity, NaN
    const std::uint32_t finite = magnitude >= 0x0400U ? normal : subnormal;     // by 2^-24
    return float_of(sign | (magnitude >= 0x7C00U ? special : finite));
}

// NaN stays NaN (quiet); 65520 and above become infinity; subnormals are kept.
NEARSTEP_HOST_DEVICE inline std::uint16_t to_fp16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t sign = (bits >> 16U) & 0x8000U;
    const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
    const std::uint32_t nan = 0x7E00U | ((magnitude >> 13U) & 0x3FFU);
    const std::uint32_t normal =
        (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13U) & 1U)) >> 13U;
    // The sum with 0.5 has the subnormal's last place as its own, so the addition rounds correctly.
    const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5F) - 0x3F000000U;
    const std::uint32_t finite = magnitude >= 0x38800000U ? normal : subnormal;
    const std::uint32_t number = magnitude >= 0x477FF000U ? 0x7C00U : finite;
    return static_cast<std::uint16_t>(sign | (magnitude > 0x7F800000U ? nan : number));
}

// Convert `count` elements between fp32 and `dtype`. The `dtype` side may be unaligned.
void convert_from_fp32(const float* from, Dtype dtype, void* to, std::size_t count);
void convert_to_fp32(Dtype dtype, const void* from, float* to, std::size_t count);

}  // namespace nearstep
