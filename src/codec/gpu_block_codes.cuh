// How kernels read block codes, four at a time. Only .cu sources include this.
#pragma once

#include "codec/gpu_tile.cuh"

namespace nearstep::codec {

constexpr unsigned kBlockQuads = arith::kScaleElems / kQuad;

// The least value that the code's bits can represent.
template <arith::BlockFormat kFormat>
constexpr std::int32_t kLeastCode = kFormat == arith::BlockFormat::q8   ? -128
                                    : kFormat == arith::BlockFormat::q4 ? -8
                                                                        : -1;

// Loads the codes of four consecutive elements, one per byte, each minus the least code. Ternary:
// the bytes that contain the codes. Sign: four bits.
template <arith::BlockFormat kFormat>
__device__ inline std::uint32_t load_codes(const std::uint32_t* words, unsigned quad) {
    const unsigned block = quad / kBlockQuads;
    const unsigned at = quad % kBlockQuads;
    if (kFormat == arith::BlockFormat::q8) {
        return words[quad] ^ 0x80808080U;
    }
    if (kFormat == arith::BlockFormat::q4) {
        const unsigned half = at / (kBlockQuads / 2);
        const std::uint32_t both = words[block * (kBlockQuads / 2) + at % (kBlockQuads / 2)];
        return ((both >> (4 * half)) & 0x0F0F0F0FU) ^ 0x08080808U;
    }
    if (kFormat == arith::BlockFormat::sign) {
        return words[quad / 8] >> (4 * (quad % 8));
    }
    return words[block / arith::kTernaryBlocks * kBlockQuads + at];
}

// Extracts from ternary bytes the digits of block `place` of those that share the bytes. Divides
// two bytes at once, as halves of a word: no product exceeds 65,535.
__device__ inline std::uint32_t digits_of(std::uint32_t bytes, unsigned place) {
    constexpr std::uint32_t kBoth = 0x00010001U;
    const std::uint32_t factor = place == 0   ? 1U
                                 : place == 1 ? 171U
                                 : place == 2 ? 57U
                                 : place == 3 ? 19U
                                              : 203U;
    const std::uint32_t shift = place == 0 ? 0U : place == 4 ? 14U : 9U;
    const std::uint32_t quotients = (0xFFFFU >> shift) * kBoth;
    std::uint32_t digits = 0;
#pragma unroll
    for (unsigned odd = 0; odd < 2; ++odd) {
        const std::uint32_t two = (bytes >> (8 * odd)) & (0xFFU * kBoth);
        const std::uint32_t upper = ((two * factor) >> shift) & quotients;
        const std::uint32_t third = ((upper * 171U) >> 9U) & (0x7FU * kBoth);
        digits |= (upper - 3 * third) << (8 * odd);
    }
    return digits;
}

template <arith::BlockFormat kFormat>
__device__ inline float decode_at(std::uint32_t codes, unsigned i, std::uint16_t scale) {
    if (kFormat == arith::BlockFormat::sign) {
        return arith::decode_sign((codes >> i) & 1U, scale);
    }
    // Builds the float 2^23 + byte, then subtracts 2^23 and the offset of the code.
    constexpr float kOffset = 8388608.0F - static_cast<float>(kLeastCode<kFormat>);
    const float code = float_of(__byte_perm(codes, 0x4B000000U, 0x7440U | i)) - kOffset;
    return code * from_bf16(scale);
}

}  // namespace nearstep::codec
