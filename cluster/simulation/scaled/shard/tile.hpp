// The tile of a simulation: as small as the codecs allow, so that the messages of a large model on
// a thousand ranks fit one process. Bandwidths are divided by the same factor; see
// docs/results/simulation.md.
#pragma once

#include <cstddef>

namespace nearstep::shard {

constexpr std::size_t kTileElems = 4096;

}  // namespace nearstep::shard
