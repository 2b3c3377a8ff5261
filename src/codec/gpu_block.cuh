// Shared parts of the kernels that encode block codes. Only .cu sources include this.
#pragma once

#include "codec/gpu_kernels.hpp"
#include "codec/gpu_tile.cuh"

namespace nearstep::codec {

// Neighbouring threads that share a block of 64 elements, eight elements each.
constexpr unsigned kBlockThreads = arith::kScaleElems / kOctet;

// Bits of the block's largest magnitude; returned in all its threads.
__device__ inline std::uint32_t largest_of_block(const float (&values)[kOctet]) {
    std::uint32_t largest = 0;
#pragma unroll
    for (const float value : values) {
        largest = max(largest, arith::magnitude_bits(value));
    }
#pragma unroll
    for (unsigned step = kBlockThreads / 2; step > 0; step /= 2) {
        largest = max(largest, __shfl_xor_sync(kEveryLane, largest, step));
    }
    return largest;
}

struct BlockEncoding {
    TileSource source;
    std::byte* payloads;
    double* squares;
    std::uint64_t random_key;
    std::uint64_t first_tile;
    const std::uint32_t* places;
    std::size_t payload_bytes;

    BlockEncoding(const GpuEncoding& encoding, std::size_t bytes)
        : source(encoding),
          payloads(encoding.payloads),
          squares(encoding.squares),
          random_key(encoding.random_key),
          first_tile(encoding.first_tile),
          places(encoding.places),
          payload_bytes(bytes) {}

    template <arith::Rounding kRounding>
    __device__ arith::TileKey key_of(unsigned tile) const {
        if (kRounding == arith::Rounding::nearest) {
            return {0, 0};
        }
        return arith::tile_key(random_key, first_tile + (places ? places[tile] : tile));
    }
};

}  // namespace nearstep::codec
