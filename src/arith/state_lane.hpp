// How masters and moments are narrowed in storage: the single definition for all engines. C++14, no
// exceptions, no containers. docs/formats/state-file.md describes the formats.
#pragma once

#include "arith/formats.hpp"
#include "base/dtype.hpp"
#include "base/host_device.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace arith {

// Element types of a format's arrays.
template <StateFormat kFormat>
struct Stored {
    static constexpr bool kHasCodes = kFormat == StateFormat::q8 || kFormat == StateFormat::compact;
    // Type of a moment stored without codes.
    using Plain = std::conditional_t<kFormat == StateFormat::bf16, std::uint16_t, float>;
    using Master = std::conditional_t<kFormat == StateFormat::compact, std::uint16_t, float>;
    using Moment1 = std::conditional_t<kHasCodes, std::int8_t, Plain>;
    using Moment2 = std::conditional_t<kHasCodes, std::uint8_t, Plain>;
};

// Elements that share a scale. Blocks start at multiples of it in their tile.
constexpr std::size_t kBlockElems = 256;

// --- Stochastic rounding -------------------------------------------------------------------------

// The random key of one tile in one step.
struct TileKey {
    std::uint32_t first;
    std::uint32_t second;
};

// SplitMix64's finaliser (Steele et al. 2014) of the step's key and the tile's number in the
// parameter vector.
NEARSTEP_HOST_DEVICE inline TileKey tile_key(std::uint64_t random_key, std::uint64_t tile) {
    std::uint64_t bits = random_key ^ (tile * 0x9E3779B97F4A7C15U);
    bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
    bits ^= bits >> 31U;
    return {static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32U)};
}

// rounding_bits() before its last operation, which changes only the lower half. Word is
// std::uint32_t or a vector of them. Multipliers: Wellons, "lowbias32".
template <typename Word>
NEARSTEP_HOST_DEVICE inline Word unfolded_bits(TileKey key, Word index) {
    Word bits = index + key.first;
    bits = (bits ^ (bits >> 16U)) * 0x7FEB352DU;
    return ((bits ^ (bits >> 15U)) + key.second) * 0x846CA68BU;
}

// 32 random bits for the element with this index in its tile: a pure function of seed, step and
// parameter. Callers use the two halves separately.
NEARSTEP_HOST_DEVICE inline std::uint32_t rounding_bits(TileKey key, std::uint32_t index) {
    const std::uint32_t bits = unfolded_bits(key, index);
    return bits ^ (bits >> 16U);
}

// Stochastic rounding to one of the two bf16 neighbours, so that the expected result is `value`.
// Values exact in bf16, infinities and zeros do not change; NaN stays NaN. `random` < 65536.
NEARSTEP_HOST_DEVICE inline std::uint16_t round_to_bf16(float value, std::uint32_t random) {
    const std::uint32_t bits = bits_of(value);
    const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return static_cast<std::uint16_t>((is_nan ? (bits | 0x00400000U) : bits + random) >> 16U);
}

// --- 8-bit moments -------------------------------------------------------------------------------
//
// In a block, moment1 is stored as code * scale / 127 with codes -127 .. 127, and moment2 as the
// square of code * scale / 255 with codes 0 .. 255. Both round to nearest, but a moment2 above zero
// never gets code 0. The scale is the block's largest |moment1| or root of moment2, but at least a
// floor, which keeps products from being subnormal. So narrowing widened values again gives the
// same scale and codes. A block that contains an infinity or NaN becomes NaN as a whole.

constexpr float kMoment1Floor = 7.8886090522101181e-31F;  // 2^-100
constexpr float kRoot2Floor = 2.7755575615628914e-17F;    // 2^-55: (floor / 255)^2 is normal
constexpr float kMoment1Codes = 127;
constexpr float kRoot2Codes = 255;

NEARSTEP_HOST_DEVICE inline std::uint32_t magnitude_bits(float value) {
    return bits_of(value) & 0x7FFFFFFFU;
}

// False if the scale is 0 or NaN; then all codes of the block are 0.
NEARSTEP_HOST_DEVICE inline bool has_codes(float scale) { return scale > 0; }

// 1.5 * 2^23. Adding it rounds to an integer and leaves that in the low bits of the sum.
constexpr float kRounder = 12582912.0F;

// `per_unit`: codes / scale.
NEARSTEP_HOST_DEVICE inline std::int8_t encode_moment1(float moment1, float per_unit) {
    return static_cast<std::int8_t>(
        static_cast<std::uint8_t>(bits_of(moment1 * per_unit + kRounder)));
}
NEARSTEP_HOST_DEVICE inline std::uint8_t encode_root2(float root2, float per_unit) {
    const std::uint32_t code = bits_of(root2 * per_unit + kRounder) & 0xFFU;
    return static_cast<std::uint8_t>(code == 0 && root2 > 0 ? 1U : code);
}

// `largest`: the largest magnitude_bits of the block; they have the same order as the magnitudes.
NEARSTEP_HOST_DEVICE inline float scale_of_block(std::uint32_t largest, float floor) {
    if (largest >= 0x7F800000U) {
        return float_of(0x7FC00000U);
    }
    return float_of(largest) > floor ? float_of(largest) : floor;
}
NEARSTEP_HOST_DEVICE inline float scale_of_moment1(std::uint32_t largest) {
    // Below half a step of the floor all codes would be 0, so the scale is 0.
    if (encode_moment1(float_of(largest), kMoment1Codes / kMoment1Floor) == 0 &&
        float_of(largest) < kMoment1Floor) {
        return 0;
    }
    return scale_of_block(largest, kMoment1Floor);
}
NEARSTEP_HOST_DEVICE inline float scale_of_root2(std::uint32_t largest) {
    return largest == 0 ? 0.0F : scale_of_block(largest, kRoot2Floor);
}

// The differences between the codes of the two moments, for templates over both. Values of the
// second are roots.
struct FirstMoment {
    using Code = std::int8_t;
    NEARSTEP_HOST_DEVICE static constexpr float codes() { return kMoment1Codes; }
    NEARSTEP_HOST_DEVICE static float scale_of(std::uint32_t largest) {
        return scale_of_moment1(largest);
    }
    NEARSTEP_HOST_DEVICE static Code encode(float value, float per_unit) {
        return encode_moment1(value, per_unit);
    }
};
struct SecondMoment {
    using Code = std::uint8_t;
    NEARSTEP_HOST_DEVICE static constexpr float codes() { return kRoot2Codes; }
    NEARSTEP_HOST_DEVICE static float scale_of(std::uint32_t largest) {
        return scale_of_root2(largest);
    }
    NEARSTEP_HOST_DEVICE static Code encode(float root, float per_unit) {
        return encode_root2(root, per_unit);
    }
};

// Encodes `count` elements of a block, which are all that it has, and returns its scale.
template <typename Moment>
inline float encode_block(const float* __restrict values, typename Moment::Code* __restrict codes,
                          std::size_t count) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint32_t bits = magnitude_bits(values[i]);
        largest = bits > largest ? bits : largest;
    }
    const float scale = Moment::scale_of(largest);
    const bool is_coded = has_codes(scale);
    const float per_unit = is_coded ? Moment::codes() / scale : 0.0F;
    for (std::size_t i = 0; i < count; ++i) {
        codes[i] = is_coded ? Moment::encode(values[i], per_unit) : typename Moment::Code{0};
    }
    return scale;
}

NEARSTEP_HOST_DEVICE inline float decode_moment1(std::int8_t code, float scale) {
    return static_cast<float>(code) * (1 / kMoment1Codes) * scale;
}
NEARSTEP_HOST_DEVICE inline float decode_root2(std::uint8_t code, float scale) {
    return static_cast<float>(code) * (1 / kRoot2Codes) * scale;
}
NEARSTEP_HOST_DEVICE inline float decode_moment2(std::uint8_t code, float scale) {
    const float root2 = decode_root2(code, scale);
    return root2 * root2;
}

}  // namespace arith
}  // namespace nearstep
