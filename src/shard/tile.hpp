// The size of a tile, in a header of its own. The build of a simulation (NEARSTEP_SIMULATE) defines
// a smaller one, to scale its messages down. All other code is the same.
#pragma once

#include <cstddef>

#ifndef NEARSTEP_TILE_ELEMS
#define NEARSTEP_TILE_ELEMS 65536
#endif

namespace nearstep::shard {

// Parameters in a tile; an index in a tile fits 16 bits.
constexpr std::size_t kTileElems = NEARSTEP_TILE_ELEMS;

}  // namespace nearstep::shard
