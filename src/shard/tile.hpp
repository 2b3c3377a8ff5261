// The size of a tile, in a header of its own: a simulation puts a header with the same name and a
// smaller size first in its search path, to scale its messages down. All other code is the same.
#pragma once

#include <cstddef>

namespace nearstep::shard {

// Parameters in a tile; an index in a tile fits 16 bits.
constexpr std::size_t kTileElems = 65536;

}  // namespace nearstep::shard
