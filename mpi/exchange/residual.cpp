// Keeps the error-feedback residual of this rank's tiles. Used by gradient_scatter.cpp; the engine
// scales and saves it.
#include "mpi/exchange/residual.hpp"

#include "base/error.hpp"

#include <algorithm>

namespace nearstep::exchange {

using shard::kTileElems;

Residual::Residual(std::vector<std::size_t> tiles)
    : tiles_(std::move(tiles)),
      current_(tiles_.size() * kTileElems * sizeof(float)),
      next_(current_.size()) {
    expects(std::ranges::is_sorted(tiles_), "a residual's tiles ascend");
}

void Residual::scale(float factor) {
    for (float& value : current_.as<float>()) {
        value *= factor;
    }
}

std::span<float> Residual::part(memory::Buffer& buffer, std::size_t tile) {
    const auto found = std::ranges::lower_bound(tiles_, tile);
    expects(found != tiles_.end() && *found == tile, "the rank slices the tile");
    return buffer.as<float>().subspan(static_cast<std::size_t>(found - tiles_.begin()) * kTileElems,
                                      kTileElems);
}

}  // namespace nearstep::exchange
