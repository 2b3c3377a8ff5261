// How the kernels read tiles and sum their squares. Only .cu sources include this.
#pragma once

#include "arith/gradient_lane.hpp"
#include "codec/gpu_codec.hpp"
#include "shard/partition.hpp"

#include <cstdint>

namespace nearstep::codec {

// Consecutive elements that a thread reads at once; a piece has kPieceOctets octets.
constexpr unsigned kOctet = 8;
constexpr unsigned kWarp = 32;
constexpr unsigned kEveryLane = 0xFFFFFFFFU;
constexpr unsigned kPieceOctets = arith::kPieceElems / kOctet;
constexpr unsigned kTilePieces = shard::kTileElems / arith::kPieceElems;
static_assert(kTilePieces == kSquareParts, "a piece of a tile has a sum of squares");

// The input fields of GpuEncoding.
struct TileSource {
    const void* values;
    const std::uint32_t* order;
    bool is_bf16;
    Dtype rounding;

    explicit TileSource(const GpuEncoding& encoding)
        : values(encoding.gradient),
          order(encoding.order),
          is_bf16(encoding.gradient_dtype == Dtype::bf16),
          rounding(encoding.rounding) {}

    __device__ unsigned tile_at(unsigned place) const { return order ? order[place] : place; }
};

__device__ inline float rounded(float value, Dtype dtype) {
    if (dtype == Dtype::bf16) {
        return from_bf16(to_bf16(value));
    }
    return dtype == Dtype::fp16 ? from_fp16(to_fp16(value)) : value;
}

// The value to encode.
__device__ inline float load_value(const TileSource& source, std::size_t at) {
    return source.is_bf16 ? from_bf16(static_cast<const std::uint16_t*>(source.values)[at])
                          : rounded(static_cast<const float*>(source.values)[at], source.rounding);
}

__device__ inline void load_floats(const float* from, float (&values)[kOctet]) {
    const float4 low = *reinterpret_cast<const float4*>(from);
    const float4 high = reinterpret_cast<const float4*>(from)[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}

__device__ inline void store_floats(const float (&values)[kOctet], float* to) {
    auto* out = reinterpret_cast<float4*>(to);
    out[0] = make_float4(values[0], values[1], values[2], values[3]);
    out[1] = make_float4(values[4], values[5], values[6], values[7]);
}

// Loads kCount octets of values to encode; octet o starts at element `at` + o x `stride`. Issues
// all loads before the first use. `at` and `stride` are multiples of 8.
template <unsigned kCount>
__device__ inline void load_octets(const TileSource& source, std::size_t at, std::size_t stride,
                                   float (&values)[kCount][kOctet]) {
    if (source.is_bf16) {
        uint4 halves[kCount];
        const auto* from = static_cast<const std::uint16_t*>(source.values) + at;
#pragma unroll
        for (unsigned o = 0; o < kCount; ++o) {
            halves[o] = *reinterpret_cast<const uint4*>(from + o * stride);
        }
#pragma unroll
        for (unsigned o = 0; o < kCount; ++o) {
            const std::uint32_t words[4] = {halves[o].x, halves[o].y, halves[o].z, halves[o].w};
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                values[o][2 * i] = float_of(words[i] << 16U);
                values[o][2 * i + 1] = float_of(words[i] & 0xFFFF0000U);
            }
        }
    } else {
        const auto* from = static_cast<const float*>(source.values) + at;
#pragma unroll
        for (unsigned o = 0; o < kCount; ++o) {
            load_floats(from + o * stride, values[o]);
        }
        if (source.rounding != Dtype::fp32) {
#pragma unroll
            for (unsigned o = 0; o < kCount; ++o) {
#pragma unroll
                for (float& value : values[o]) {
                    value = rounded(value, source.rounding);
                }
            }
        }
    }
}

__device__ inline double squares_of(const float (&values)[kOctet]) {
    double sum = 0;
#pragma unroll
    for (const float value : values) {
        const double wide = value;
        sum = __fma_rn(wide, wide, sum);  // the square is exact with or without fma
    }
    return sum;
}

// Sums over the block's threads in a fixed order; only thread 0 gets the result. All threads call.
// `sums`: shared memory, one entry per warp.
template <unsigned kThreads>
__device__ inline double sum_over_block(double value, double* sums) {
#pragma unroll
    for (unsigned step = kWarp / 2; step > 0; step /= 2) {
        value += __shfl_down_sync(kEveryLane, value, step);
    }
    if (threadIdx.x % kWarp == 0) {
        sums[threadIdx.x / kWarp] = value;
    }
    __syncthreads();
    double total = 0;
    if (threadIdx.x == 0) {
        for (unsigned warp = 0; warp < kThreads / kWarp; ++warp) {
            total += sums[warp];
        }
    }
    return total;
}

}  // namespace nearstep::codec
