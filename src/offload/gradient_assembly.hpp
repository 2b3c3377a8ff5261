// Cuts the gradients of blocks, which come last block first, into whole tiles.
#pragma once

#include "shard/partition.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::offload {

using shard::ElementRange;

// Tiles that are complete once the block is there and all blocks behind it were: those that begin
// in it (all from tile 0 on if the block begins the vector).
shard::TileRange complete_tiles(ElementRange block);

// The lower end of a block that does not begin with a tile is carried over to the block before it.
class GradientAssembly {
public:
    // `blocks`: adjacent, in forward order, from 0. Allocates for the largest.
    explicit GradientAssembly(std::span<const ElementRange> blocks);

    // Where the block's gradient is to be written, fp32. Blocks come last first; then from the last
    // again.
    std::span<float> space(ElementRange block);

    // Of the block that space() was last called for: the values of complete_tiles(block), padding
    // zero. Valid until space() is called again.
    std::span<const float> tiles(ElementRange block);

private:
    std::size_t elems_ = 0;
    std::vector<float> values_;  // from the tile that the block begins in
    std::vector<float> carried_;
    std::size_t carried_elems_ = 0;
};

}  // namespace nearstep::offload
