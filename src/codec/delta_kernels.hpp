// The loops of the delta codec over one tile, by the CPU's instruction set. All give the same bits.
#pragma once

#include "shard/tile.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::codec {

// Bytes behind an array that kernels may read or write beyond its end, whatever is there.
constexpr std::size_t kDeltaSlackBytes = 64;

// Words of one bit per parameter of a tile.
constexpr std::size_t kBitmapWords = shard::kTileElems / 64;

// Of a tile: parameters that changed, and those of them that changed by more than one unit.
struct DeltaCensus {
    std::size_t changed = 0;
    std::size_t escaped = 0;
};

// Arrays have a tile's elements or kBitmapWords words. Stateless; any thread may call.
struct DeltaKernels {
    const char* name;

    // Sets in `plus` the bits of parameters that grew by 1, in `minus` of those that shrank by 1,
    // and in both of those that changed otherwise.
    DeltaCensus (*compare)(const std::uint16_t* old, const std::uint16_t* fresh,
                           std::uint64_t* plus, std::uint64_t* minus);

    // Writes the values, or the indices, of the bits that are set, and into the slack behind them.
    void (*pick_values)(const std::uint64_t* bits, const std::uint16_t* values, std::uint16_t* out);
    void (*pick_indices)(const std::uint64_t* bits, std::uint16_t* out);

    // Where `mask` is set, the bits of `bits`, closed up; the words begun are filled with zeros.
    void (*pack)(const std::uint64_t* mask, const std::uint64_t* bits, std::uint64_t* out);
    // Undoes pack(); zeros where `mask` is not set.
    void (*unpack)(const std::uint64_t* mask, const std::uint64_t* packed, std::uint64_t* bits);

    // Bits that are set in both.
    std::size_t (*count_both)(const std::uint64_t* one, const std::uint64_t* other);

    // Undoes compare(): `values` has one for each bit that is set in both, and slack behind them.
    void (*apply)(const std::uint64_t* plus, const std::uint64_t* minus,
                  const std::uint16_t* values, std::uint16_t* target);
};

// Those that this CPU can run, the slowest first: "scalar", "avx2", "avx512".
const std::vector<DeltaKernels>& delta_kernels();

// The fastest of them.
inline const DeltaKernels& best_delta_kernels() { return delta_kernels().back(); }

}  // namespace nearstep::codec
