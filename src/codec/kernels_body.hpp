// The body of every variant; each variant's source compiles it for its own instruction set.
//
// Everything here has internal linkage, and `flatten` inlines all that is called: a function that
// the linker could share with other sources would carry instructions that another CPU lacks. Loops
// are of one kind each and stay in a piece, which fits the first cache: compilers vectorise them.
#pragma once

#include "codec/kernels.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {
namespace {

using fpga::BlockFormat;
using fpga::kPieceBlocks;
using fpga::kPieceElems;
using fpga::kScaleElems;
using fpga::kTernaryBlocks;
using fpga::kTernaryGroups;
using fpga::Rounding;
using fpga::TileKey;

// --- Number formats ------------------------------------------------------------------------------

[[gnu::flatten]] inline void narrow(const float* __restrict from, Dtype dtype, void* __restrict to,
                                    std::size_t count) {
    auto* halves = static_cast<std::uint16_t*>(to);
    switch (dtype) {
        case Dtype::fp32:
            __builtin_memcpy(to, from, count * sizeof(float));
            return;
        case Dtype::bf16:
            for (std::size_t i = 0; i < count; ++i) {
                halves[i] = to_bf16(from[i]);
            }
            return;
        case Dtype::fp16:
            for (std::size_t i = 0; i < count; ++i) {
                halves[i] = to_fp16(from[i]);
            }
            return;
    }
}

[[gnu::flatten]] inline void widen(Dtype dtype, const void* __restrict from, float* __restrict to,
                                   std::size_t count) {
    const auto* halves = static_cast<const std::uint16_t*>(from);
    switch (dtype) {
        case Dtype::fp32:
            __builtin_memcpy(to, from, count * sizeof(float));
            return;
        case Dtype::bf16:
            for (std::size_t i = 0; i < count; ++i) {
                to[i] = from_bf16(halves[i]);
            }
            return;
        case Dtype::fp16:
            for (std::size_t i = 0; i < count; ++i) {
                to[i] = from_fp16(halves[i]);
            }
            return;
    }
}

inline void add(const float* __restrict from, float* __restrict sum, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
        sum[i] += from[i];
    }
}

[[gnu::flatten]] inline void add_widened(Dtype dtype, const void* __restrict from,
                                         float* __restrict sum, std::size_t count) {
    const auto* halves = static_cast<const std::uint16_t*>(from);
    switch (dtype) {
        case Dtype::fp32:
            add(static_cast<const float*>(from), sum, count);
            return;
        case Dtype::bf16:
            for (std::size_t i = 0; i < count; ++i) {
                sum[i] += from_bf16(halves[i]);
            }
            return;
        case Dtype::fp16:
            for (std::size_t i = 0; i < count; ++i) {
                sum[i] += from_fp16(halves[i]);
            }
            return;
    }
}

// --- Scales --------------------------------------------------------------------------------------

inline std::uint32_t largest_of(const float* values) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < kScaleElems; ++i) {
        const std::uint32_t bits = fpga::magnitude_bits(values[i]);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

// Sums over the blocks of a piece: element i plus i + n/2 of n until one is left. Eight lanes of each
// block come first; then all blocks are summed side by side, which keeps vectors full.
struct Lanes {
    static constexpr std::size_t kEach = 8;
    alignas(64) float of[kPieceBlocks * kEach];  // NOLINT(modernize-avoid-c-arrays): as C++14
};

template <typename Term>
inline void sum_to_lanes(const float* __restrict values, std::size_t block, Lanes& lanes,
                         const Term& term) {
    const float* __restrict from = values + block * kScaleElems;
    float half[kScaleElems / 2];     // NOLINT(modernize-avoid-c-arrays)
    float quarter[kScaleElems / 4];  // NOLINT(modernize-avoid-c-arrays)
    for (std::size_t i = 0; i < kScaleElems / 2; ++i) {
        half[i] = term(from[i]) + term(from[i + kScaleElems / 2]);
    }
    for (std::size_t i = 0; i < kScaleElems / 4; ++i) {
        quarter[i] = half[i] + half[i + kScaleElems / 4];
    }
    for (std::size_t i = 0; i < Lanes::kEach; ++i) {
        lanes.of[block * Lanes::kEach + i] = quarter[i] + quarter[i + Lanes::kEach];
    }
}

inline void sum_lanes(const Lanes& lanes, float* __restrict sums) {
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        const float* l = lanes.of + b * Lanes::kEach;
        sums[b] = ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
    }
}

inline void mean_magnitudes(const float* values, float* __restrict means) {
    Lanes lanes;
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        sum_to_lanes(values, b, lanes, [](float value) { return fpga::magnitude(value); });
    }
    sum_lanes(lanes, means);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        means[b] *= 1.0F / kScaleElems;
    }
}

// Of the magnitudes above the blocks' thresholds; 0 where there is none.
inline void means_above(const float* values, const float* __restrict thresholds,
                        float* __restrict means) {
    Lanes lanes;
    Lanes counts;
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        const float threshold = thresholds[b];
        sum_to_lanes(values, b, lanes, [threshold](float value) {
            return fpga::magnitude(value) > threshold ? fpga::magnitude(value) : 0.0F;
        });
        sum_to_lanes(values, b, counts, [threshold](float value) {
            return fpga::magnitude(value) > threshold ? 1.0F : 0.0F;
        });
    }
    float above[kPieceBlocks];  // NOLINT(modernize-avoid-c-arrays)
    sum_lanes(lanes, means);
    sum_lanes(counts, above);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        means[b] /= above[b] > 1.0F ? above[b] : 1.0F;
    }
}

inline void scales_of_largest(const float* values, std::int32_t limit, std::uint16_t* __restrict scales) {
    std::uint32_t largest[kPieceBlocks];  // NOLINT(modernize-avoid-c-arrays)
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        largest[b] = largest_of(values + b * kScaleElems);
    }
    const float one_over_limit = 1.0F / static_cast<float>(limit);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        scales[b] = fpga::scale_of_largest(largest[b], one_over_limit);
    }
}

inline void scales_of_mean(const float* values, std::uint16_t* __restrict scales) {
    float means[kPieceBlocks];  // NOLINT(modernize-avoid-c-arrays)
    mean_magnitudes(values, means);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        scales[b] = fpga::scale_of_mean(means[b]);
    }
}

// --- Codes of a block ----------------------------------------------------------------------------

// The dithers of a block: zeros, or from its random bits.
template <Rounding kRounding>
inline float dither_at(TileKey key, std::uint32_t index) {
    return kRounding == Rounding::stochastic ? fpga::dither_of(fpga::rounding_bits(key, index))
                                             : 0.0F;
}

template <Rounding kRounding>
inline void encode_q8(const float* __restrict values, std::uint16_t scale, TileKey key,
                      std::uint32_t first, std::uint8_t* __restrict codes) {
    constexpr std::int32_t kLimit = fpga::largest_code(BlockFormat::q8);
    const float per_scale = fpga::per_scale(scale);
    const std::uint32_t mask = fpga::has_block_codes(scale) ? 0xFFU : 0U;
    for (std::uint32_t i = 0; i < kScaleElems; ++i) {
        const float dither = dither_at<kRounding>(key, first + i);
        const std::int32_t code = fpga::code_of(values[i], per_scale, dither, kLimit);
        codes[i] = static_cast<std::uint8_t>(static_cast<std::uint32_t>(code) & mask);
    }
}

template <Rounding kRounding>
inline void encode_q4(const float* __restrict values, std::uint16_t scale, TileKey key,
                      std::uint32_t first, std::uint8_t* __restrict codes) {
    constexpr std::uint32_t kHalf = kScaleElems / 2;
    constexpr std::int32_t kLimit = fpga::largest_code(BlockFormat::q4);
    const float per_scale = fpga::per_scale(scale);
    const std::uint32_t mask = fpga::has_block_codes(scale) ? 0xFU : 0U;
    for (std::uint32_t i = 0; i < kHalf; ++i) {
        const float low_dither = dither_at<kRounding>(key, first + i);
        const float high_dither = dither_at<kRounding>(key, first + i + kHalf);
        const std::int32_t low = fpga::code_of(values[i], per_scale, low_dither, kLimit);
        const std::int32_t high = fpga::code_of(values[i + kHalf], per_scale, high_dither, kLimit);
        codes[i] = static_cast<std::uint8_t>((static_cast<std::uint32_t>(low) & mask) |
                                             ((static_cast<std::uint32_t>(high) & mask) << 4U));
    }
}

// One bit per element, the lowest first.
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

template <Rounding kRounding>
inline void encode_sign(const float* __restrict values, std::uint16_t scale, TileKey key,
                        std::uint32_t first, std::uint8_t* __restrict codes) {
    std::uint64_t bits = 0;
    if (kRounding == Rounding::nearest) {
        bits = gather_bits([&](std::uint32_t i) { return fpga::sign_bit(values[i]); });
    } else {
        const float half_per_scale = 0.5F * fpga::per_scale(scale);
        bits = gather_bits([&](std::uint32_t i) {
            return fpga::dithered_sign_bit(values[i], half_per_scale,
                                           dither_at<kRounding>(key, first + i));
        });
    }
    const bool is_nan = scale == fpga::kNanScale;
    bits = is_nan ? 0 : bits;
    __builtin_memcpy(codes, &bits, sizeof bits);
}

// --- Ternary codes of a piece --------------------------------------------------------------------

// Of all blocks of a piece and the one behind, whose elements are 0.
struct Digits {
    alignas(64) std::uint8_t of[kTernaryGroups * kTernaryBlocks * kScaleElems];  // NOLINT
};

inline void ternary_digits_nearest(const float* __restrict values, std::uint16_t* __restrict scales,
                                   Digits& digits) {
    float thresholds[kPieceBlocks];  // NOLINT(modernize-avoid-c-arrays)
    float means[kPieceBlocks];       // NOLINT(modernize-avoid-c-arrays)
    mean_magnitudes(values, thresholds);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        thresholds[b] *= fpga::kTernaryThreshold;
    }
    means_above(values, thresholds, means);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        // A mean that is not finite is kept, so that the scale becomes NaN.
        means[b] = fpga::magnitude_bits(thresholds[b]) >= 0x7F800000U ? thresholds[b] : means[b];
    }
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        scales[b] = fpga::scale_of_mean(means[b]);
    }
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        const bool has_codes = fpga::has_block_codes(scales[b]);
        const float* __restrict from = values + b * kScaleElems;
        std::uint8_t* __restrict to = digits.of + b * kScaleElems;
        for (std::size_t i = 0; i < kScaleElems; ++i) {
            const std::uint32_t digit = fpga::ternary_digit(from[i], thresholds[b]);
            to[i] = static_cast<std::uint8_t>(has_codes ? digit : 1U);
        }
    }
}

inline void ternary_digits_stochastic(const float* __restrict values, TileKey key,
                                      std::uint32_t first, const std::uint16_t* __restrict scales,
                                      Digits& digits) {
    for (std::uint32_t b = 0; b < kPieceBlocks; ++b) {
        const float per_scale = fpga::per_scale(scales[b]);
        const bool has_codes = fpga::has_block_codes(scales[b]);
        const float* __restrict from = values + b * kScaleElems;
        std::uint8_t* __restrict to = digits.of + b * kScaleElems;
        for (std::uint32_t i = 0; i < kScaleElems; ++i) {
            const float dither = dither_at<Rounding::stochastic>(
                key, first + b * static_cast<std::uint32_t>(kScaleElems) + i);
            const std::int32_t code = fpga::code_of(from[i], per_scale, dither, 1);
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
            // Horner's rule, in 8 bits: at most 242.
            auto byte = static_cast<std::uint8_t>(d[i + 4 * kScaleElems] * 3 +
                                                  d[i + 3 * kScaleElems]);
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
            const auto v3 = static_cast<std::uint16_t>(fpga::third_of(v));
            const auto v9 = static_cast<std::uint16_t>(fpga::ninth_of(v));
            const auto v27 = static_cast<std::uint16_t>(fpga::part_27_of(v));
            const auto v81 = static_cast<std::uint16_t>(fpga::part_81_of(v));
            d[i] = static_cast<std::uint8_t>(v - 3 * v3);
            d[i + kScaleElems] = static_cast<std::uint8_t>(v3 - 3 * v9);
            d[i + 2 * kScaleElems] = static_cast<std::uint8_t>(v9 - 3 * v27);
            d[i + 3 * kScaleElems] = static_cast<std::uint8_t>(v27 - 3 * v81);
            d[i + 4 * kScaleElems] = static_cast<std::uint8_t>(v81);
        }
    }
}

// --- Pieces --------------------------------------------------------------------------------------

template <Rounding kRounding>
inline void encode_rounded(BlockFormat format, const float* values, TileKey key,
                           std::uint32_t first, std::uint8_t* codes, std::uint16_t* scales) {
    if (kRounding == Rounding::stochastic || format == BlockFormat::q8 ||
        format == BlockFormat::q4) {
        scales_of_largest(values, fpga::largest_code(format), scales);
    } else if (format == BlockFormat::sign) {
        scales_of_mean(values, scales);
    }
    if (format == BlockFormat::ternary) {
        Digits digits;
        if (kRounding == Rounding::nearest) {
            ternary_digits_nearest(values, scales, digits);
        } else {
            ternary_digits_stochastic(values, key, first, scales, digits);
        }
        return pack_ternary(digits, codes);
    }
    const std::size_t code_bytes = fpga::piece_code_bytes(format) / kPieceBlocks;
    for (std::uint32_t b = 0; b < kPieceBlocks; ++b) {
        const std::uint32_t at = b * static_cast<std::uint32_t>(kScaleElems);
        std::uint8_t* to = codes + b * code_bytes;
        if (format == BlockFormat::q8) {
            encode_q8<kRounding>(values + at, scales[b], key, first + at, to);
        } else if (format == BlockFormat::q4) {
            encode_q4<kRounding>(values + at, scales[b], key, first + at, to);
        } else {
            encode_sign<kRounding>(values + at, scales[b], key, first + at, to);
        }
    }
}

[[gnu::flatten]] inline void encode_piece(BlockCoding coding, const float* values, TileKey key,
                                          std::uint32_t first, std::uint8_t* codes,
                                          std::uint16_t* scales) {
    if (coding.rounding == Rounding::nearest) {
        encode_rounded<Rounding::nearest>(coding.format, values, key, first, codes, scales);
    } else {
        encode_rounded<Rounding::stochastic>(coding.format, values, key, first, codes, scales);
    }
}

inline void decode_q8(const std::uint8_t* __restrict codes, float scale, float* __restrict sum) {
    for (std::size_t i = 0; i < kScaleElems; ++i) {
        sum[i] += fpga::decode_code(static_cast<std::int8_t>(codes[i]), scale);
    }
}

inline void decode_q4(const std::uint8_t* __restrict codes, float scale, float* __restrict sum) {
    constexpr std::size_t kHalf = kScaleElems / 2;
    for (std::size_t i = 0; i < kHalf; ++i) {
        const auto both = static_cast<std::int8_t>(codes[i]);
        const auto low = static_cast<std::int32_t>((static_cast<std::uint32_t>(both) & 0xFU) ^ 8U);
        sum[i] += fpga::decode_code(low - 8, scale);
        sum[i + kHalf] += fpga::decode_code(both >> 4, scale);
    }
}

inline void decode_signs(const std::uint8_t* __restrict codes, std::uint16_t scale,
                         float* __restrict sum) {
    for (std::size_t half = 0; half < 2; ++half) {
        std::uint32_t bits = 0;
        __builtin_memcpy(&bits, codes + 4 * half, sizeof bits);
        float* __restrict to = sum + 32 * half;
        for (std::uint32_t i = 0; i < 32; ++i) {
            to[i] += fpga::decode_sign((bits >> i) & 1U, scale);
        }
    }
}

inline void decode_ternary(const std::uint8_t* __restrict digits, float scale,
                           float* __restrict sum) {
    for (std::size_t i = 0; i < kScaleElems; ++i) {
        sum[i] += fpga::decode_code(static_cast<std::int32_t>(digits[i]) - 1, scale);
    }
}

[[gnu::flatten]] inline void decode_add_piece(BlockFormat format, const std::uint8_t* codes,
                                              const std::uint16_t* scales, float* sum) {
    switch (format) {
        case BlockFormat::q8:
            for (std::size_t b = 0; b < kPieceBlocks; ++b) {
                decode_q8(codes + b * kScaleElems, from_bf16(scales[b]), sum + b * kScaleElems);
            }
            return;
        case BlockFormat::q4:
            for (std::size_t b = 0; b < kPieceBlocks; ++b) {
                decode_q4(codes + b * kScaleElems / 2, from_bf16(scales[b]), sum + b * kScaleElems);
            }
            return;
        case BlockFormat::ternary: {
            Digits digits;
            unpack_ternary(codes, digits);
            for (std::size_t b = 0; b < kPieceBlocks; ++b) {
                decode_ternary(digits.of + b * kScaleElems, from_bf16(scales[b]),
                               sum + b * kScaleElems);
            }
            return;
        }
        case BlockFormat::sign:
            for (std::size_t b = 0; b < kPieceBlocks; ++b) {
                decode_signs(codes + b * kScaleElems / 8, scales[b], sum + b * kScaleElems);
            }
            return;
    }
}

[[gnu::flatten]] inline void mark(const float* __restrict values, std::uint32_t least,
                                  std::uint64_t* __restrict marks, std::size_t count) {
    for (std::size_t b = 0; b < count / 64; ++b) {
        const float* __restrict block = values + b * 64;
        marks[b] = gather_bits([&](std::uint32_t i) {
            return fpga::magnitude_bits(block[i]) >= least ? 1U : 0U;
        });
    }
}

}  // namespace
}  // namespace nearstep::codec
