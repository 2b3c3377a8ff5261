// The kernel launch behind start_deltas().
#pragma once

#include "codec/gpu_delta.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {

// Accumulators of XXH3.
constexpr std::size_t kDigestSums = 8;

// The constants of XXH3, from arith/xxh3_keys.hpp.
struct DeltaDigestKeys {
    // NOLINTBEGIN(modernize-avoid-c-arrays): device code cannot index std::array
    std::uint64_t of_words[24];  // sum i in word w of a block uses entry w + i
    std::uint64_t of_last_word[kDigestSums];
    std::uint64_t of_merge[kDigestSums];
    // NOLINTEND(modernize-avoid-c-arrays)
};

struct DeltaMessage {
    const std::byte* bytes;
    std::uint32_t tiles;
    std::uint16_t* parameters;
    std::uint32_t* verdict;  // number of tiles from the first wrong one to the end
};

struct DeltaMessages {
    DeltaMessage of[kMostDeltas];  // NOLINT(modernize-avoid-c-arrays)
    std::uint32_t count;
};

// `most_tiles`: the most tiles in a message. The messages' tables must be valid.
void apply_deltas(const DeltaMessages& messages, unsigned most_tiles, const DeltaDigestKeys& keys,
                  CUstream_st* stream);

}  // namespace nearstep::codec
