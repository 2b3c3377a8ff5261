// The body of every variant. Each variant's source compiles it for its own instruction set.
//
// Everything here has internal linkage, and `flatten` inlines all callees: a function that the
// linker shares with other sources could contain instructions that another CPU lacks. Each loop
// handles one kind and stays within a piece, which fits the L1 cache, so compilers vectorise it.
#pragma once

#include "arith/gradient_lane.hpp"
#include "codec/codec_kernels.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {
namespace {

using arith::GradientCodec;
using arith::kPieceBlocks;
using arith::kScaleElems;
using arith::Rounding;
using arith::TileKey;

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

// Writes the widened values to `to`, or adds them to it.
template <bool kAdds>
inline void widen_to(Dtype dtype, const void* __restrict from, float* __restrict to,
                     std::size_t count) {
    const auto* floats = static_cast<const float*>(from);
    const auto* halves = static_cast<const std::uint16_t*>(from);
    switch (dtype) {
        case Dtype::fp32:
            for (std::size_t i = 0; i < count; ++i) {
                to[i] = kAdds ? to[i] + floats[i] : floats[i];
            }
            return;
        case Dtype::bf16:
            for (std::size_t i = 0; i < count; ++i) {
                to[i] = kAdds ? to[i] + from_bf16(halves[i]) : from_bf16(halves[i]);
            }
            return;
        case Dtype::fp16:
            for (std::size_t i = 0; i < count; ++i) {
                to[i] = kAdds ? to[i] + from_fp16(halves[i]) : from_fp16(halves[i]);
            }
            return;
    }
}

[[gnu::flatten]] inline void widen(Dtype dtype, const void* from, float* to, std::size_t count) {
    widen_to<false>(dtype, from, to, count);
}

[[gnu::flatten]] inline void add_widened(Dtype dtype, const void* from, float* sum,
                                         std::size_t count) {
    widen_to<true>(dtype, from, sum, count);
}

inline void add(const float* from, float* sum, std::size_t count) {
    add_widened(Dtype::fp32, from, sum, count);
}

inline void add_squares(const float* __restrict values, double* __restrict sums,
                        std::size_t count) {
    double own[kSquareSums];  // NOLINT(modernize-avoid-c-arrays)
    __builtin_memcpy(own, sums, sizeof own);
    const std::size_t whole = count / kSquareSums * kSquareSums;
    for (std::size_t at = 0; at < whole; at += kSquareSums) {
        for (std::size_t i = 0; i < kSquareSums; ++i) {
            const auto value = static_cast<double>(values[at + i]);
            own[i] += value * value;
        }
    }
    for (std::size_t at = whole; at < count; ++at) {
        const auto value = static_cast<double>(values[at]);
        own[at - whole] += value * value;
    }
    __builtin_memcpy(sums, own, sizeof own);
}

// --- Block codes ---------------------------------------------------------------------------------

inline void scales_of_largest(const float* values, std::int32_t limit,
                              std::uint16_t* __restrict scales) {
    std::uint32_t largest[kPieceBlocks];  // NOLINT(modernize-avoid-c-arrays): as C++14
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        largest[b] = 0;
        for (std::size_t i = 0; i < kScaleElems; ++i) {
            const std::uint32_t bits = arith::magnitude_bits(values[b * kScaleElems + i]);
            largest[b] = bits > largest[b] ? bits : largest[b];
        }
    }
    const float one_over_limit = 1.0F / static_cast<float>(limit);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        scales[b] = arith::scale_of_largest(largest[b], one_over_limit);
    }
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
    constexpr std::int32_t kLimit = arith::largest_code(GradientCodec::q8);
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
    constexpr std::int32_t kLimit = arith::largest_code(GradientCodec::q4);
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
inline void encode_rounded(GradientCodec codec, const float* values, TileKey key,
                           std::uint32_t first, std::uint8_t* codes, std::uint16_t* scales) {
    scales_of_largest(values, arith::largest_code(codec), scales);
    for (std::uint32_t b = 0; b < kPieceBlocks; ++b) {
        const std::uint32_t at = b * static_cast<std::uint32_t>(kScaleElems);
        if (codec == GradientCodec::q8) {
            encode_q8<kRounding>(values + at, scales[b], key, first + at, codes + at);
        } else {
            encode_q4<kRounding>(values + at, scales[b], key, first + at, codes + at / 2);
        }
    }
}

[[gnu::flatten]] inline void encode_piece(BlockCoding coding, const float* values, TileKey key,
                                          std::uint32_t first, std::uint8_t* codes,
                                          std::uint16_t* scales) {
    if (coding.rounding == Rounding::nearest) {
        encode_rounded<Rounding::nearest>(coding.codec, values, key, first, codes, scales);
    } else {
        encode_rounded<Rounding::stochastic>(coding.codec, values, key, first, codes, scales);
    }
}

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

[[gnu::flatten]] inline void decode_add_piece(GradientCodec codec, const std::uint8_t* codes,
                                              const std::uint16_t* scales, float* sum) {
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        const std::size_t at = b * kScaleElems;
        if (codec == GradientCodec::q8) {
            decode_q8(codes + at, from_bf16(scales[b]), sum + at);
        } else {
            decode_q4(codes + at / 2, from_bf16(scales[b]), sum + at);
        }
    }
}

// --- Top-k ---------------------------------------------------------------------------------------

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

[[gnu::flatten]] inline void mark(const float* __restrict values, std::uint32_t least,
                                  std::uint64_t* __restrict marks, std::size_t count) {
    for (std::size_t b = 0; b < count / 64; ++b) {
        const float* __restrict block = values + b * 64;
        marks[b] = gather_bits(
            [&](std::uint32_t i) { return arith::magnitude_bits(block[i]) >= least ? 1U : 0U; });
    }
}

}  // namespace
}  // namespace nearstep::codec
