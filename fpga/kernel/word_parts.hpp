// Parts of a word: bytes, halves and quads, and groups of elements that the lanes take per cycle.
// C++14, no exceptions, no containers.
#pragma once

#include "fpga/kernel/word.hpp"

#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

inline std::uint32_t byte_of(const Word& word, std::uint32_t index) {
    return (word.of[index / 4] >> (8 * (index % 4))) & 0xFFU;
}
inline std::uint32_t half_of(const Word& word, std::uint32_t index) {
    return (word.of[index / 2] >> (16 * (index % 2))) & 0xFFFFU;
}
inline std::uint64_t quad_of(const Word& word, std::uint32_t index) {
    const std::uint32_t low = 2 * index;
    return word.of[low] | (static_cast<std::uint64_t>(word.of[low + 1]) << 32U);
}
inline void set_quad(Word& word, std::uint32_t index, std::uint64_t quad) {
    const std::uint32_t low = 2 * index;
    word.of[low] = static_cast<std::uint32_t>(quad);
    word.of[low + 1] = static_cast<std::uint32_t>(quad >> 32U);
}

inline Word zero_word() {
    Word word;
    for (std::uint32_t& unit : word.of) {
#pragma HLS unroll
        unit = 0;
    }
    return word;
}

// Neighbouring elements, one per lane: bits of fp32 or of a narrower format.
template <int kLanes>
struct LaneGroup {
    std::uint32_t of[kLanes];  // NOLINT(modernize-avoid-c-arrays)
};

// Extracts group `part` of a word whose elements have `bits` bits (8, 16 or 32).
template <int kLanes>
inline LaneGroup<kLanes> slice(const Word& word, std::uint32_t part, std::uint32_t bits) {
    LaneGroup<kLanes> group;
    for (int lane = 0; lane < kLanes; ++lane) {
#pragma HLS unroll
        const std::uint32_t index = part * kLanes + static_cast<std::uint32_t>(lane);
        group.of[lane] = bits == 32   ? word.of[index]
                         : bits == 16 ? half_of(word, index)
                                      : byte_of(word, index);
    }
    return group;
}

// Inverse of slice(). The word must start as zero.
template <int kLanes>
inline void insert(const LaneGroup<kLanes>& group, std::uint32_t part, std::uint32_t bits,
                   Word& word) {
    for (int lane = 0; lane < kLanes; ++lane) {
#pragma HLS unroll
        const std::uint32_t bit = (part * kLanes + static_cast<std::uint32_t>(lane)) * bits;
        word.of[bit / 32] |= group.of[lane] << (bit % 32);
    }
}

}  // namespace fpga
}  // namespace nearstep
