// Cuts gradients of blocks, which come last block first, into whole tiles.
#pragma once

#include "shard/partition.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::offload {

using shard::ElementRange;

// The tiles that are complete once the block and all later blocks are there: those that begin in
// the block, or all from tile 0 if it is the first block.
shard::TileRange complete_tiles(ElementRange block);

// If a block starts inside a tile, its part of the tile is carried over to the block before it.
class GradientAssembly {
public:
    // `blocks` are adjacent, in forward order, from 0. Allocates for the largest.
    explicit GradientAssembly(std::span<const ElementRange> blocks);

    // Where to write the block's gradient, fp32. Blocks come last first in every step.
    std::span<float> space(ElementRange block);

    // The values of complete_tiles(block), with zeros as padding, for the block of the last space()
    // call. Valid until the next space() call.
    std::span<const float> tiles(ElementRange block);

private:
    std::size_t elems_ = 0;
    std::vector<float> values_;  // from the start of the block's first tile
    std::vector<float> carried_;
    std::size_t carried_elems_ = 0;
};

}  // namespace nearstep::offload
