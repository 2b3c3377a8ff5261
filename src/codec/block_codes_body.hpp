// The block codes of kernels_body.hpp, which explains how they are compiled.
#pragma once

#include "codec/block_scales_body.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {
namespace {

using arith::kTernaryBlocks;
using arith::kTernaryGroups;
using arith::Rounding;
using arith::TileKey;

// Packs bit(0) to bit(63) into a word, bit(0) lowest.
template <typename Bit>
inline std::uint64_t gather_bits(const Bit& bit) {
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    for (std::uint32_t i = 0; i < 32; ++i) {
        low |= bit(i) << i;
    }
    for (std::uint32_t i = 0; i < 32; ++i) {
        high |= bit(i + 32) << i;
    }
    return low | (static_cast<std::uint64_t>(high) << 32U);
}

// The dither of one element: 0, or derived from its random bits.
template <Rounding kRounding>
inline float dither_at(TileKey key, std::uint32_t index) {
    return kRounding == Rounding::stochastic ? arith::dither_of(arith::rounding_bits(key, index))
                                             : 0.0F;
}

template <Rounding kRounding>
inline void encode_q8(const float* __restrict values, std::uint16_t scale, TileKey key,
                      std::uint32_t first, std::uint8_t* __restrict codes) {
    constexpr std::int32_t kLimit = arith::largest_code(BlockFormat::q8);
    const float per_scale = arith::per_scale(scale);
    const std::uint32_t mask = arith::has_block_codes(scale) ? 0xFFU : 0U;
    for (std::uint32_t i = 0; i < kScaleElems; ++i) {
        const float dither = dither_at<kRounding>(key, first + i);
        const std::int32_t code = arith::code_of(values[i], per_scale, dither, kLimit);
        codes[i] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(code) & mask);
    }
}

template <Rounding kRounding>
inline void encode_q4(const float* __restrict values, std::uint16_t scale, TileKey key,
                      std::uint32_t first, std::uint8_t* __restrict codes) {
    constexpr std::uint32_t kHalf = kScaleElems / 2;
    constexpr std::int32_t kLimit = arith::largest_code(BlockFormat::q4);
    const float per_scale = arith::per_scale(scale);
    const std::uint32_t mask = arith::has_block_codes(scale) ? 0xFU : 0U;
    for (std::uint32_t i = 0; i < kHalf; ++i) {
        const float low_dither = dither_at<kRounding>(key, first + i);
        const float high_dither = dither_at<kRounding>(key, first + i + kHalf);
        const std::int32_t low = arith::code_of(values[i], per_scale, low_dither, kLimit);
        const std::int32_t high = arith::code_of(values[i + kHalf], per_scale, high_dither, kLimit);
        codes[i] = static_cast<std::uint8_t>((static_cast<std::uint32_t>(low) & mask) |
                                             ((static_cast<std::uint32_t>(high) & mask) << 4U));
    }
}

template <Rounding kRounding>
inline void encode_sign(const float* __restrict values, std::uint16_t scale, TileKey key,
                        std::uint32_t first, std::uint8_t* __restrict codes) {
    std::uint64_t bits = 0;
    if (kRounding == Rounding::nearest) {
        bits = gather_bits([&](std::uint32_t i) { return arith::sign_bit(values[i]); });
    } else {
        const float half_per_scale = 0.5F * arith::per_scale(scale);
        bits = gather_bits([&](std::uint32_t i) {
            return arith::dithered_sign_bit(values[i], half_per_scale,
                                            dither_at<kRounding>(key, first + i));
        });
    }
    const bool is_nan = scale == arith::kNanScale;
    bits = is_nan ? 0 : bits;
    __builtin_memcpy(codes, &bits, sizeof bits);
}

// --- Ternary codes of a piece --------------------------------------------------------------------

// Digits of all blocks of a piece and of one padding block, whose elements are 0.
struct Digits {
    alignas(64) std::uint8_t of[kTernaryGroups * kTernaryBlocks * kScaleElems];  // NOLINT
};

inline void ternary_digits_nearest(const float* __restrict values, std::uint16_t* __restrict scales,
                                   Digits& digits) {
    float thresholds[kPieceBlocks];  // NOLINT(modernize-avoid-c-arrays)
    float means[kPieceBlocks];       // NOLINT(modernize-avoid-c-arrays)
    mean_magnitudes(values, thresholds);
    for (float& threshold : thresholds) {
        threshold *= arith::kTernaryThreshold;
    }
    means_above(values, thresholds, means);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        // Keep a mean that is not finite, so that the scale becomes NaN.
        means[b] = arith::magnitude_bits(thresholds[b]) >= 0x7F800000U ? thresholds[b] : means[b];
    }
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        scales[b] = arith::scale_of_mean(means[b]);
    }
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        const bool has_codes = arith::has_block_codes(scales[b]);
        const float* __restrict from = values + b * kScaleElems;
        std::uint8_t* __restrict to = digits.of + b * kScaleElems;
        for (std::size_t i = 0; i < kScaleElems; ++i) {
            const std::uint32_t digit = arith::ternary_digit(from[i], thresholds[b]);
            to[i] = static_cast<std::uint8_t>(has_codes ? digit : 1U);
        }
    }
}

inline void ternary_digits_stochastic(const float* __restrict values, TileKey key,
                                      std::uint32_t first, const std::uint16_t* __restrict scales,
                                      Digits& digits) {
    for (std::uint32_t b = 0; b < kPieceBlocks; ++b) {
        const float per_scale = arith::per_scale(scales[b]);
        const bool has_codes = arith::has_block_codes(scales[b]);
        const float* __restrict from = values + b * kScaleElems;
        std::uint8_t* __restrict to = digits.of + b * kScaleElems;
        for (std::uint32_t i = 0; i < kScaleElems; ++i) {
            const float dither = dither_at<Rounding::stochastic>(
                key, first + b * static_cast<std::uint32_t>(kScaleElems) + i);
            const std::int32_t code = arith::code_of(from[i], per_scale, dither, 1);
            to[i] = static_cast<std::uint8_t>(has_codes ? code + 1 : 1);
        }
    }
}

inline void pack_ternary(Digits& digits, std::uint8_t* __restrict codes) {
    for (std::size_t i = kPieceElems; i < sizeof digits.of; ++i) {
        digits.of[i] = 1;
    }
    for (std::size_t g = 0; g < kTernaryGroups; ++g) {
        const std::uint8_t* __restrict d = digits.of + g * kTernaryBlocks * kScaleElems;
        for (std::size_t i = 0; i < kScaleElems; ++i) {
            // Horner's rule in 8 bits: the result is at most 242.
            auto byte =
                static_cast<std::uint8_t>(d[i + 4 * kScaleElems] * 3 + d[i + 3 * kScaleElems]);
            byte = static_cast<std::uint8_t>(byte * 3 + d[i + 2 * kScaleElems]);
            byte = static_cast<std::uint8_t>(byte * 3 + d[i + kScaleElems]);
            codes[g * kScaleElems + i] = static_cast<std::uint8_t>(byte * 3 + d[i]);
        }
    }
}

inline void unpack_ternary(const std::uint8_t* __restrict codes, Digits& digits) {
    for (std::size_t g = 0; g < kTernaryGroups; ++g) {
        std::uint8_t* __restrict d = digits.of + g * kTernaryBlocks * kScaleElems;
        for (std::size_t i = 0; i < kScaleElems; ++i) {
            const std::uint16_t v = codes[g * kScaleElems + i];
            const auto v3 = static_cast<std::uint16_t>(arith::third_of(v));
            const auto v9 = static_cast<std::uint16_t>(arith::ninth_of(v));
            const auto v27 = static_cast<std::uint16_t>(arith::part_27_of(v));
            const auto v81 = static_cast<std::uint16_t>(arith::part_81_of(v));
            d[i] = static_cast<std::uint8_t>(v - 3 * v3);
            d[i + kScaleElems] = static_cast<std::uint8_t>(v3 - 3 * v9);
            d[i + 2 * kScaleElems] = static_cast<std::uint8_t>(v9 - 3 * v27);
            d[i + 3 * kScaleElems] = static_cast<std::uint8_t>(v27 - 3 * v81);
            d[i + 4 * kScaleElems] = static_cast<std::uint8_t>(v81);
        }
    }
}

// --- Decoding ------------------------------------------------------------------------------------

inline void decode_q8(const std::uint8_t* __restrict codes, float scale, float* __restrict sum) {
    for (std::size_t i = 0; i < kScaleElems; ++i) {
        sum[i] += arith::decode_code(static_cast<std::int8_t>(codes[i]), scale);
    }
}

inline void decode_q4(const std::uint8_t* __restrict codes, float scale, float* __restrict sum) {
    constexpr std::size_t kHalf = kScaleElems / 2;
    for (std::size_t i = 0; i < kHalf; ++i) {
        const auto both = static_cast<std::int8_t>(codes[i]);
        const auto low = static_cast<std::int32_t>((static_cast<std::uint32_t>(both) & 0xFU) ^ 8U);
        sum[i] += arith::decode_code(low - 8, scale);
        sum[i + kHalf] += arith::decode_code(both >> 4, scale);
    }
}

inline void decode_signs(const std::uint8_t* __restrict codes, std::uint16_t scale,
                         float* __restrict sum) {
    for (std::size_t half = 0; half < 2; ++half) {
        std::uint32_t bits = 0;
        __builtin_memcpy(&bits, codes + 4 * half, sizeof bits);
        float* __restrict to = sum + 32 * half;
        for (std::uint32_t i = 0; i < 32; ++i) {
            to[i] += arith::decode_sign((bits >> i) & 1U, scale);
        }
    }
}

inline void decode_ternary(const std::uint8_t* __restrict digits, float scale,
                           float* __restrict sum) {
    for (std::size_t i = 0; i < kScaleElems; ++i) {
        sum[i] += arith::decode_code(static_cast<std::int32_t>(digits[i]) - 1, scale);
    }
}

}  // namespace
}  // namespace nearstep::codec
