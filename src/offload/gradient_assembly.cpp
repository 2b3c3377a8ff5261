// Cuts blocks' gradients into whole tiles. Used by step_pipeline.cpp and gpu_gradients.cpp.
#include "offload/gradient_assembly.hpp"

#include "base/error.hpp"
#include "base/units.hpp"

#include <algorithm>

namespace nearstep::offload {

using shard::kTileElems;

shard::TileRange complete_tiles(ElementRange block) {
    return {shard::tiles_of(block.begin), shard::tiles_of(block.end)};
}

GradientAssembly::GradientAssembly(std::span<const ElementRange> blocks) : carried_(kTileElems) {
    std::size_t largest = 0;
    for (const ElementRange block : blocks) {
        expects(block.begin == elems_, "the blocks are adjacent and in forward order");
        elems_ = block.end;
        largest = std::max(largest, block.size());
    }
    // The block, plus the first tile's head before it and the last tile's rest after it.
    values_.resize(largest + 2 * kTileElems);
}

std::span<float> GradientAssembly::space(ElementRange block) {
    if (block.end == elems_) {  // after the last block: padding of the last tile
        carried_elems_ = round_up(elems_, kTileElems) - elems_;
        std::fill_n(carried_.begin(), carried_elems_, 0.0F);
    }
    return std::span(values_).subspan(block.begin % kTileElems, block.size());
}

std::span<const float> GradientAssembly::tiles(ElementRange block) {
    const shard::TileRange complete = complete_tiles(block);
    const std::size_t base = block.begin / kTileElems * kTileElems;
    float* const end = values_.data() + (block.end - base);
    std::copy_n(carried_.begin(), carried_elems_, end);
    if (complete.size() == 0) {  // block inside one tile: carry all of it
        carried_elems_ += block.size();
        std::copy_n(values_.data() + (block.begin - base), carried_elems_, carried_.begin());
        return {};
    }
    const std::size_t first = complete.begin * kTileElems;
    carried_elems_ = first - block.begin;
    std::copy_n(values_.data() + (block.begin - base), carried_elems_, carried_.begin());
    return std::span(values_).subspan(first - base, complete.size() * kTileElems);
}

}  // namespace nearstep::offload
