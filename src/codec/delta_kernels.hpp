// The delta codec's loops over one tile, one variant per instruction set. All give the same bits.
#pragma once

#include "shard/tile.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::codec {

// Bytes behind the end of an array that kernels may read or overwrite.
constexpr std::size_t kDeltaSlackBytes = 64;

// 64-bit words of a bitmap with one bit per parameter of a tile.
constexpr std::size_t kBitmapWords = shard::kTileElems / 64;

// Per tile: how many parameters changed, and how many of those by more than one unit.
struct DeltaCensus {
    std::size_t changed = 0;
    std::size_t escaped = 0;
};

// Arrays hold a tile's elements or kBitmapWords words. Stateless; any thread may call.
struct DeltaKernels {
    const char* name;

    // Sets a bit in `plus` for each parameter that grew by 1, in `minus` for each that shrank by 1,
    // and in both for any other change.
    DeltaCensus (*compare)(const std::uint16_t* old, const std::uint16_t* fresh,
                           std::uint64_t* plus, std::uint64_t* minus);

    // Writes the values, or the indices, of the set bits. May also write into the slack.
    void (*pick_values)(const std::uint64_t* bits, const std::uint16_t* values, std::uint16_t* out);
    void (*pick_indices)(const std::uint64_t* bits, std::uint16_t* out);

    // Packs the bits of `bits` where `mask` is set; pads the last word with zeros.
    void (*pack)(const std::uint64_t* mask, const std::uint64_t* bits, std::uint64_t* out);
    // Undoes pack(); zeros where `mask` is not set.
    void (*unpack)(const std::uint64_t* mask, const std::uint64_t* packed, std::uint64_t* bits);

    // Counts the bits that are set in both.
    std::size_t (*count_both)(const std::uint64_t* one, const std::uint64_t* other);

    // Undoes compare(): `values` has one entry per bit set in both bitmaps, then slack.
    void (*apply)(const std::uint64_t* plus, const std::uint64_t* minus,
                  const std::uint16_t* values, std::uint16_t* target);
};

// The variants this CPU can run, slowest first: "scalar", "avx2", "avx512".
const std::vector<DeltaKernels>& delta_kernels();

inline const DeltaKernels& best_delta_kernels() { return delta_kernels().back(); }

}  // namespace nearstep::codec
