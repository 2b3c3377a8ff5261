// The launch behind start_deltas().
#pragma once

#include "codec/gpu_delta.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {

// Of XXH3: as many sums go through a tile.
constexpr std::size_t kDigestSums = 8;

// The algorithm's constants, as arith/xxh3_keys.hpp has them.
struct DeltaDigestKeys {
    // NOLINTBEGIN(modernize-avoid-c-arrays): device code cannot index std::array
    std::uint64_t of_words[24];  // of sum i in word w of a block: number w + i
    std::uint64_t of_last_word[kDigestSums];
    std::uint64_t of_merge[kDigestSums];
    // NOLINTEND(modernize-avoid-c-arrays)
};

struct DeltaMessage {
    const std::byte* bytes;
    std::uint32_t tiles;
    std::uint16_t* parameters;
    std::uint32_t* verdict;  // raised to the number of tiles from a wrong one on
};

struct DeltaMessages {
    DeltaMessage of[kMostDeltas];  // NOLINT(modernize-avoid-c-arrays)
    std::uint32_t count;
};

// `most_tiles`: of a message. Their tables are right.
void apply_deltas(const DeltaMessages& messages, unsigned most_tiles, const DeltaDigestKeys& keys,
                  CUstream_st* stream);

}  // namespace nearstep::codec
