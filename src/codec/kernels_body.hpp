// The body of every variant. Each variant's source compiles it for its own instruction set.
//
// Everything here has internal linkage, and `flatten` inlines all callees: a function that the
// linker shares with other sources could contain instructions that another CPU lacks. Each loop
// handles one kind and stays within a piece, which fits the L1 cache, so compilers vectorise it.
#pragma once

#include "codec/block_codes_body.hpp"
#include "codec/kernels.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {
namespace {

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

// --- Pieces --------------------------------------------------------------------------------------

template <Rounding kRounding>
inline void encode_rounded(BlockFormat format, const float* values, TileKey key,
                           std::uint32_t first, std::uint8_t* codes, std::uint16_t* scales) {
    if (kRounding == Rounding::stochastic || format == BlockFormat::q8 ||
        format == BlockFormat::q4) {
        scales_of_largest(values, arith::largest_code(format), scales);
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
    const std::size_t code_bytes = arith::piece_code_bytes(format) / kPieceBlocks;
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
        marks[b] = gather_bits(
            [&](std::uint32_t i) { return arith::magnitude_bits(block[i]) >= least ? 1U : 0U; });
    }
}

}  // namespace
}  // namespace nearstep::codec
