// The single definition of gradient codes in blocks, for CPU variants and GPU kernels. C++14, no
// exceptions, no containers. docs/formats/gradient-payload.md describes the format.
#pragma once

#include "arith/state_lane.hpp"
#include "base/dtype.hpp"
#include "base/host_device.hpp"

#include <cstddef>
#include <cstdint>

// C++14 has no nested namespace definitions.
namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace arith {

// How a gradient payload is coded (docs/formats/gradient-payload.md). The suffix of dense and topk
// is the format of their values.
enum class GradientCodec : std::uint32_t {
    dense_fp32,
    dense_bf16,
    dense_fp16,
    topk_bf16,
    topk_fp16,
    q8,
    q4,
    ternary,
    sign
};
constexpr std::uint32_t kGradientCodecs = 9;

// Codes: q8 -127 .. 127, q4 -7 .. 7, ternary -1, 0, 1, sign -1, 1.
enum class BlockFormat : std::uint8_t { q8, q4, ternary, sign };

enum class Rounding : std::uint8_t { nearest, stochastic };

// Elements that share a scale.
constexpr std::size_t kScaleElems = 64;
// Elements of a piece; each piece can be decoded alone.
constexpr std::size_t kPieceElems = 4096;
constexpr std::size_t kPieceBlocks = kPieceElems / kScaleElems;

// Ternary codes: a group of five blocks shares bytes; a piece has 13 groups.
constexpr std::size_t kTernaryBlocks = 5;
constexpr std::size_t kTernaryGroups = (kPieceBlocks + kTernaryBlocks - 1) / kTernaryBlocks;

// Bytes of a piece's codes.
NEARSTEP_HOST_DEVICE constexpr std::size_t piece_code_bytes(BlockFormat format) {
    return format == BlockFormat::q8        ? kPieceElems
           : format == BlockFormat::q4      ? kPieceElems / 2
           : format == BlockFormat::ternary ? kTernaryGroups * kScaleElems
                                            : kPieceElems / 8;
}

// L, the largest code. For sign and ternary it applies to stochastic rounding only, where the scale
// is the largest magnitude.
NEARSTEP_HOST_DEVICE constexpr std::int32_t largest_code(BlockFormat format) {
    return format == BlockFormat::q8 ? 127 : format == BlockFormat::q4 ? 7 : 1;
}

constexpr float kScaleFloor = 7.8886090522101181e-31F;  // 2^-100: no product is subnormal
constexpr std::uint16_t kNanScale = 0x7FC0U;
constexpr float kTernaryThreshold = 0.7F;  // times the mean magnitude: Li, Zhang and Liu (2016)

NEARSTEP_HOST_DEVICE inline float magnitude(float value) { return float_of(magnitude_bits(value)); }

// The scale of a block, bf16, rounded up. `largest`: the bits of the block's largest magnitude.
NEARSTEP_HOST_DEVICE inline std::uint16_t scale_of_largest(std::uint32_t largest,
                                                           float one_over_limit) {
    const float unit = float_of(largest) * one_over_limit;
    const float floored = unit > kScaleFloor ? unit : kScaleFloor;
    const std::uint32_t rounded_up = (bits_of(floored) + 0xFFFFU) >> 16U;
    const std::uint32_t finite = largest == 0 ? 0U : rounded_up;
    return static_cast<std::uint16_t>(largest >= 0x7F800000U ? kNanScale : finite);
}

// The scale of a block with this mean, bf16, rounded to nearest even: 0 if the mean is below the
// floor, NaN if it is not finite.
NEARSTEP_HOST_DEVICE inline std::uint16_t scale_of_mean(float mean) {
    const std::uint32_t bits = bits_of(mean);
    const std::uint32_t finite = mean < kScaleFloor ? 0U : to_bf16(mean);
    return static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) >= 0x7F800000U ? kNanScale : finite);
}

// False if the scale is 0 or NaN; then all codes of the block are 0.
NEARSTEP_HOST_DEVICE inline bool has_block_codes(std::uint16_t scale) {
    return from_bf16(scale) > 0;
}

// 1 / scale; 0 if the block has no codes.
NEARSTEP_HOST_DEVICE inline float per_scale(std::uint16_t scale) {
    return has_block_codes(scale) ? 1.0F / from_bf16(scale) : 0.0F;
}

// Uniform in (-1/2, 1/2), exact in fp32. `bits`: rounding_bits() of the element.
NEARSTEP_HOST_DEVICE inline float dither_of(std::uint32_t bits) {
    return static_cast<float>(static_cast<std::int32_t>((bits >> 16U) * 2U) - 65535) *
           (1.0F / 131072.0F);
}

// Rounds to nearest even if `dither` is 0. The dither can push the sum past the limit, so the code
// is clamped.
NEARSTEP_HOST_DEVICE inline std::int32_t code_of(float value, float one_over_scale, float dither,
                                                 std::int32_t limit) {
    const float wanted = value * one_over_scale + dither;
    const auto code = static_cast<std::int32_t>(bits_of(wanted + kRounder) - bits_of(kRounder));
    const std::int32_t below = code < limit ? code : limit;
    return below > -limit ? below : -limit;
}

// Maps -1, 0, 1 to 0, 1, 2. `threshold` applies to the magnitude.
NEARSTEP_HOST_DEVICE inline std::uint32_t ternary_digit(float value, float threshold) {
    return 1U + (value > threshold ? 1U : 0U) - (value < -threshold ? 1U : 0U);
}

// 1 for negative. `half_per_scale`: 0.5 / scale.
NEARSTEP_HOST_DEVICE inline std::uint32_t sign_bit(float value) { return bits_of(value) >> 31U; }
NEARSTEP_HOST_DEVICE inline std::uint32_t dithered_sign_bit(float value, float half_per_scale,
                                                            float dither) {
    return dither > value * half_per_scale ? 1U : 0U;
}

// v divided by 3, 9, 27 and 81, to find the digits of a ternary byte; for v < 243.
NEARSTEP_HOST_DEVICE inline std::uint32_t third_of(std::uint32_t v) {
    return (v * 171U) >> 9U;
}  // v / 3
NEARSTEP_HOST_DEVICE inline std::uint32_t ninth_of(std::uint32_t v) {
    return (v * 57U) >> 9U;
}  // v / 9
NEARSTEP_HOST_DEVICE inline std::uint32_t part_27_of(std::uint32_t v) {
    return (v * 19U) >> 9U;
}  // v / 27
NEARSTEP_HOST_DEVICE inline std::uint32_t part_81_of(std::uint32_t v) {
    return (v * 203U) >> 14U;
}  // v / 81

NEARSTEP_HOST_DEVICE inline float decode_code(std::int32_t code, float scale) {
    return static_cast<float>(code) * scale;
}
NEARSTEP_HOST_DEVICE inline float decode_sign(std::uint32_t is_negative, std::uint16_t scale) {
    return float_of((static_cast<std::uint32_t>(scale) << 16U) | (is_negative << 31U));
}

}  // namespace arith
}  // namespace nearstep
