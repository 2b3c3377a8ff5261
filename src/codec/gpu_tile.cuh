// How the kernels of a GPU's codecs read tiles. Only .cu files include this.
#pragma once

#include "arith/gradient_lane.hpp"
#include "codec/gpu_encoding.hpp"
#include "memory/gpu_octets.cuh"
#include "shard/tile.hpp"

#include <cstdint>

namespace nearstep::codec {

// A piece has kPieceOctets octets: consecutive elements that a thread reads at once.
using memory::kOctet;
constexpr unsigned kWarp = 32;
constexpr unsigned kEveryLane = 0xFFFFFFFFU;
constexpr unsigned kPieceOctets = arith::kPieceElems / kOctet;
constexpr unsigned kTilePieces = shard::kTileElems / arith::kPieceElems;

__device__ inline unsigned tile_at(const GpuEncoding& e, unsigned place) {
    return e.order ? e.order[place] : place;
}

__device__ inline float rounded(float value, Dtype dtype) {
    if (dtype == Dtype::bf16) {
        return from_bf16(to_bf16(value));
    }
    return dtype == Dtype::fp16 ? from_fp16(to_fp16(value)) : value;
}

// The value to encode.
__device__ inline float load_value(const GpuEncoding& e, std::size_t at) {
    return e.gradient_dtype == Dtype::bf16
               ? from_bf16(static_cast<const std::uint16_t*>(e.gradient)[at])
               : rounded(static_cast<const float*>(e.gradient)[at], e.rounding);
}

// Loads kCount octets of values to encode; octet o starts at element `at` + o x `stride`. Issues
// all loads before the first use. `at` and `stride` are multiples of 8.
template <unsigned kCount>
__device__ inline void load_octets(const GpuEncoding& e, std::size_t at, std::size_t stride,
                                   float (&values)[kCount][kOctet]) {
    if (e.gradient_dtype == Dtype::bf16) {
        std::uint16_t halves[kCount][kOctet];
#pragma unroll
        for (unsigned o = 0; o < kCount; ++o) {
            memory::load(static_cast<const std::uint16_t*>(e.gradient) + at + o * stride,
                         halves[o]);
        }
#pragma unroll
        for (unsigned o = 0; o < kCount; ++o) {
#pragma unroll
            for (unsigned i = 0; i < kOctet; ++i) {
                values[o][i] = from_bf16(halves[o][i]);
            }
        }
        return;
    }
#pragma unroll
    for (unsigned o = 0; o < kCount; ++o) {
        memory::load(static_cast<const float*>(e.gradient) + at + o * stride, values[o]);
    }
    if (e.rounding != Dtype::fp32) {
#pragma unroll
        for (unsigned o = 0; o < kCount; ++o) {
#pragma unroll
            for (float& value : values[o]) {
                value = rounded(value, e.rounding);
            }
        }
    }
}

// --- Codecs that encode each piece alone: a thread block per piece -------------------------------

constexpr unsigned kEach = kPieceOctets / kPieceThreads;  // octets of a thread

struct Piece {
    unsigned place;  // of the tile's payload
    unsigned tile;
    unsigned piece;
    float values[kEach][kOctet];

    // Octet o of this thread in its piece.
    __device__ static unsigned octet(unsigned o) { return o * kPieceThreads + threadIdx.x; }
};

// Loads the values of this thread block's piece.
__device__ inline Piece load_piece(const GpuEncoding& e) {
    Piece own{blockIdx.x / kTilePieces, tile_at(e, blockIdx.x / kTilePieces),
              blockIdx.x % kTilePieces};
    const std::size_t from = own.tile * shard::kTileElems + own.piece * arith::kPieceElems;
    load_octets(e, from + threadIdx.x * kOctet, kPieceThreads * kOctet, own.values);
    return own;
}

}  // namespace nearstep::codec
