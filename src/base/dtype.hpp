// Number formats of parameters and gradients, and the conversions between them.
//
// The conversions are written in C++14 without exceptions, because the FPGA kernels use them too.
// All round to nearest even; every engine must give these bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nearstep {

enum class Dtype { fp32, bf16, fp16 };

// Bytes of one element.
constexpr std::size_t size_bytes(Dtype dtype) { return dtype == Dtype::fp32 ? 4 : 2; }

// "fp32", "bf16" or "fp16".
const char* name_of(Dtype dtype);

inline std::uint32_t bits_of(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of(std::uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline float from_bf16(std::uint16_t half) {
    return float_of(static_cast<std::uint32_t>(half) << 16U);
}

// NaN stays NaN (quiet, sign and upper payload kept); above the largest bf16 it becomes infinity.
inline std::uint16_t to_bf16(float value) {
    const std::uint32_t bits = bits_of(value);
    const std::uint32_t rounded = bits + 0x7FFFU + ((bits >> 16U) & 1U);
    const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return static_cast<std::uint16_t>((is_nan ? (bits | 0x00400000U) : rounded) >> 16U);
}

float from_fp16(std::uint16_t half);

// NaN stays NaN (quiet); 65520 and above become infinity; subnormals are kept.
std::uint16_t to_fp16(float value);

// Converts `count` elements between fp32 and `dtype`, whose elements lie unaligned-safe at
// `to`/`from`.
void convert_from_fp32(const float* from, Dtype dtype, void* to, std::size_t count);
void convert_to_fp32(Dtype dtype, const void* from, float* to, std::size_t count);

}  // namespace nearstep
