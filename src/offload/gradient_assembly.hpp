// Cuts gradients of blocks, which come last block first, into whole tiles.
#pragma once

#include "memory/gpu.hpp"
#include "shard/gradient.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::offload {

using shard::ElementRange;

// The tiles that are complete once the block and all later blocks are there: those that begin in
// the block, or all from tile 0 if it is the first block.
shard::TileRange complete_tiles(ElementRange block);

// Writes the values of the gradient's elements from `first` on, times its factor.
void read_gradient(const shard::Gradient& gradient, std::size_t first, std::span<float> values);
// Writes all of them to memory of the GPU that has the parts, in stream order.
void read_on_gpu(const shard::Gradient& gradient, std::span<float> values,
                 const memory::Stream& stream);

// Reads tiles where the client has them. If a block starts inside a tile, its part of the tile is
// carried over to the block before it.
class GradientAssembly {
public:
    // `blocks` are adjacent, in forward order, from 0.
    explicit GradientAssembly(std::span<const ElementRange> blocks);

    // Begins with a block, whose gradient stays as it is until carry(). Blocks come last first in
    // every step.
    void take(ElementRange block, const shard::Gradient& gradient);
    // Writes the values of one of complete_tiles() of the block taken last, with zeros as padding.
    // Any number of threads may call.
    void read(std::size_t tile, std::span<float> values) const;
    // Ends with the block.
    void carry();

private:
    std::size_t elems_ = 0;
    ElementRange block_;
    shard::Gradient gradient_;
    std::vector<float> carried_;  // from the end of the block on
    std::size_t carried_elems_ = 0;
};

}  // namespace nearstep::offload
