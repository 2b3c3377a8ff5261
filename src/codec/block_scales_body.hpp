// The block scales of kernels_body.hpp, which explains how they are compiled.
#pragma once

#include "arith/gradient_lane.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {
namespace {

using arith::BlockFormat;
using arith::kPieceBlocks;
using arith::kPieceElems;
using arith::kScaleElems;

inline std::uint32_t largest_of(const float* values) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < kScaleElems; ++i) {
        const std::uint32_t bits = arith::magnitude_bits(values[i]);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

// Sums each block of a piece by halving: element i plus element i + n/2, until one is left. Each
// block is first reduced to eight lanes; then all blocks are summed together to keep vectors full.
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
        sum_to_lanes(values, b, lanes, [](float value) { return arith::magnitude(value); });
    }
    sum_lanes(lanes, means);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        means[b] *= 1.0F / kScaleElems;
    }
}

// Per block, the mean of the magnitudes above its threshold; 0 if there is none.
inline void means_above(const float* values, const float* __restrict thresholds,
                        float* __restrict means) {
    Lanes lanes;
    Lanes counts;
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        const float threshold = thresholds[b];
        sum_to_lanes(values, b, lanes, [threshold](float value) {
            return arith::magnitude(value) > threshold ? arith::magnitude(value) : 0.0F;
        });
        sum_to_lanes(values, b, counts, [threshold](float value) {
            return arith::magnitude(value) > threshold ? 1.0F : 0.0F;
        });
    }
    float above[kPieceBlocks];  // NOLINT(modernize-avoid-c-arrays)
    sum_lanes(lanes, means);
    sum_lanes(counts, above);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        means[b] /= above[b] > 1.0F ? above[b] : 1.0F;
    }
}

inline void scales_of_largest(const float* values, std::int32_t limit,
                              std::uint16_t* __restrict scales) {
    std::uint32_t largest[kPieceBlocks];  // NOLINT(modernize-avoid-c-arrays)
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        largest[b] = largest_of(values + b * kScaleElems);
    }
    const float one_over_limit = 1.0F / static_cast<float>(limit);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        scales[b] = arith::scale_of_largest(largest[b], one_over_limit);
    }
}

inline void scales_of_mean(const float* values, std::uint16_t* __restrict scales) {
    float means[kPieceBlocks];  // NOLINT(modernize-avoid-c-arrays)
    mean_magnitudes(values, means);
    for (std::size_t b = 0; b < kPieceBlocks; ++b) {
        scales[b] = arith::scale_of_mean(means[b]);
    }
}

}  // namespace
}  // namespace nearstep::codec
