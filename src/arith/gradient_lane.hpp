// The single definition of gradient codes in blocks, for CPU variants and GPU kernels. C++14, no
// exceptions, no containers. docs/formats/gradient-payload.md describes the format.
#pragma once

#include "arith/formats.hpp"
#include "arith/state_lane.hpp"
#include "base/dtype.hpp"
#include "base/host_device.hpp"

#include <cstddef>
#include <cstdint>

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
    q4
};
constexpr std::uint32_t kGradientCodecs = 7;

NEARSTEP_HOST_DEVICE constexpr bool is_dense(GradientCodec codec) {
    return codec <= GradientCodec::dense_fp16;
}
NEARSTEP_HOST_DEVICE constexpr bool is_topk(GradientCodec codec) {
    return codec == GradientCodec::topk_bf16 || codec == GradientCodec::topk_fp16;
}

// Elements that share a scale.
constexpr std::size_t kScaleElems = 64;
// Elements of a piece; each piece can be decoded alone.
constexpr std::size_t kPieceElems = 4096;
constexpr std::size_t kPieceBlocks = kPieceElems / kScaleElems;

// The rest is about q8, with codes -127 .. 127, and q4, with codes -7 .. 7.

// Bytes of a piece's codes.
NEARSTEP_HOST_DEVICE constexpr std::size_t piece_code_bytes(GradientCodec codec) {
    return codec == GradientCodec::q8 ? kPieceElems : kPieceElems / 2;
}

// L, the largest code.
NEARSTEP_HOST_DEVICE constexpr std::int32_t largest_code(GradientCodec codec) {
    return codec == GradientCodec::q8 ? 127 : 7;
}

constexpr float kScaleFloor = 7.8886090522101181e-31F;  // 2^-100: no product is subnormal
constexpr std::uint16_t kNanScale = 0x7FC0U;

// The scale of a block, bf16, rounded up. `largest`: the bits of the block's largest magnitude.
NEARSTEP_HOST_DEVICE inline std::uint16_t scale_of_largest(std::uint32_t largest,
                                                           float one_over_limit) {
    const float unit = float_of(largest) * one_over_limit;
    const float floored = unit > kScaleFloor ? unit : kScaleFloor;
    const std::uint32_t rounded_up = (bits_of(floored) + 0xFFFFU) >> 16U;
    const std::uint32_t finite = largest == 0 ? 0U : rounded_up;
    return static_cast<std::uint16_t>(largest >= 0x7F800000U ? kNanScale : finite);
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

NEARSTEP_HOST_DEVICE inline float decode_code(std::int32_t code, float scale) {
    return static_cast<float>(code) * scale;
}

}  // namespace arith
}  // namespace nearstep
