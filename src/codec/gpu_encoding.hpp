// The arguments of the codecs' kernels on a GPU. The GPU's compiler reads this, too.
#pragma once

#include "base/dtype.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {

// All addresses are in GPU memory, aligned to 16 bytes unless stated otherwise, and do not overlap.
struct GpuEncoding {
    std::size_t tiles = 0;

    // tiles x kTileElems values in fp32 or bf16, zero in the padding. fp32 values are first rounded
    // to `rounding`, as they are when a group of ranks exchanges them.
    const void* gradient = nullptr;
    Dtype gradient_dtype = Dtype::fp32;
    Dtype rounding = Dtype::fp32;

    // Payload i encodes tile order[i]; null: tile i.
    const std::uint32_t* order = nullptr;

    // The payloads take tiles x payload_bytes() bytes.
    std::byte* payloads = nullptr;

    // Keys of stochastic rounding. Tile i's key is arith::tile_key(random_key, first_tile +
    // places[i]); if `places` is null, i replaces places[i].
    std::uint64_t random_key = 0;
    std::uint64_t first_tile = 0;
    const std::uint32_t* places = nullptr;
};

// The arguments of top-k. `wanted_samples`: of the sample, as many give a bound for the kept ones.
struct TopkEncoding {
    GpuEncoding source;
    unsigned kept = 0;
    unsigned wanted_samples = 0;
    bool is_fp16 = false;
};

// Top-k samples one of each 64 elements, at irregular positions that no gradient pattern matches.
constexpr unsigned kSampleEvery = 64;

// Most addends in one sum; a node has no more GPUs.
constexpr std::size_t kMostAddends = 64;

struct Addends {
    const std::byte* at[kMostAddends] = {};  // NOLINT(modernize-avoid-c-arrays): NVRTC has no other
    unsigned count = 0;
};

// Threads of a block, and what a block works on.
constexpr unsigned kPieceThreads = 256;  // a piece of a tile, or 256 octets of a sum
constexpr unsigned kTopkThreads = 256;   // a tile
constexpr unsigned kSquareThreads = 64;  // 8 tiles

}  // namespace nearstep::codec
