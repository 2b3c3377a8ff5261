// The size of a tile, by itself: a simulation has a header of this name with a smaller one before
// this in its search path, so that its messages are scaled down and all other code is the same.
#pragma once

#include <cstddef>

namespace nearstep::shard {

// Parameters in a tile; an index in a tile fits 16 bits.
constexpr std::size_t kTileElems = 65536;

}  // namespace nearstep::shard
