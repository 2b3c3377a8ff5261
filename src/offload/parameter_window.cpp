#include "offload/parameter_window.hpp"

namespace nearstep::offload {

ParameterWindow::ParameterWindow(StepPipeline& pipeline, const shard::Ownership& owners, int rank,
                                 memory::Buffer& vector, std::size_t tile_bytes)
    : pipeline_(pipeline),
      owners_(owners),
      rank_(rank),
      vector_(vector),
      tile_bytes_(tile_bytes),
      is_held_(owners.tiles(), false) {}

std::vector<bool> ParameterWindow::tiles_of(std::span<const ElementRange> ranges) const {
    std::vector<bool> is_in(owners_.tiles(), false);
    for (const ElementRange range : ranges) {
        const std::size_t end = shard::tiles_of(range.end);
        for (std::size_t tile = range.begin / shard::kTileElems; tile < end; ++tile) {
            is_in[tile] = true;
        }
    }
    return is_in;
}

void ParameterWindow::hold(std::span<const ElementRange> now, std::span<const ElementRange> later) {
    const std::vector<bool> is_now = tiles_of(now);
    const std::vector<bool> is_later = tiles_of(later);
    std::vector<shard::TileRange> missing;
    for (std::size_t tile = 0; tile < is_held_.size(); ++tile) {
        if (is_now[tile] && !is_held_[tile]) {
            if (missing.empty() || missing.back().end != tile) {
                missing.push_back({tile, tile});
            }
            missing.back().end = tile + 1;
            is_held_[tile] = true;
        } else if (is_held_[tile] && !is_now[tile] && !is_later[tile]) {
            is_held_[tile] = false;
            if (!owners_.owns(rank_, tile)) {
                vector_.drop(tile * tile_bytes_, tile_bytes_);
            }
        }
    }
    pipeline_.bring(vector_.span(), missing);
}

}  // namespace nearstep::offload
