// The timelines of all ranks in one file.
#pragma once

#include "mpi/communicator.hpp"
#include "trace/timeline.hpp"

#include <optional>
#include <string>

namespace nearstep::train {

// Before the first step, so that the ranks' times fit together, to within a barrier. Collective.
void begin_timeline(const mpi::Communicator& world, std::optional<trace::Timeline>& timeline);

// Rank 0 writes the spans of all ranks to `path`, as Chrome's trace format has them. Returns a line
// on how busy the lanes were in `seconds` of steps, of all ranks together. Collective.
std::string write_timeline(const mpi::Communicator& world, const trace::Timeline& timeline,
                           double seconds, const std::string& path);

}  // namespace nearstep::train
