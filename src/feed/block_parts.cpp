// Divides a block's bytes among the GPUs that fetch it together. Used by model/block_copies.cpp and
// model/gpu_plan.cpp.
#include "feed/block_parts.hpp"

#include "base/error.hpp"
#include "base/units.hpp"

#include <algorithm>

namespace nearstep::feed {

std::size_t slot_bytes(std::size_t block_bytes, int ranks) {
    return round_up(block_bytes, kSlotAlignment * static_cast<std::size_t>(ranks));
}

BlockPart part_of_block(std::size_t block_bytes, int rank, int ranks) {
    expects(rank >= 0 && rank < ranks, "the rank is one of those that copy");
    const std::size_t part = slot_bytes(block_bytes, ranks) / static_cast<std::size_t>(ranks);
    const std::size_t begin = part * static_cast<std::size_t>(rank);
    return {std::min(begin, block_bytes), std::min(begin + part, block_bytes)};
}

}  // namespace nearstep::feed
