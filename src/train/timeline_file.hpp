// The timelines of all ranks in one file.
#pragma once

#include "mpi/communicator.hpp"
#include "trace/timeline.hpp"

#include <array>
#include <optional>
#include <string>

namespace nearstep::train {

// Before the first step, so that the ranks' times fit together, to within a barrier. Collective.
void begin_timeline(const mpi::Communicator& world, std::optional<trace::Timeline>& timeline);

// How busy each lane was in `seconds` of steps: seconds of work, of all devices, per second and
// rank. Their sum is how many lanes were at work at once. Collective.
using LaneShares = std::array<double, trace::kLanes>;
LaneShares lane_shares(const mpi::Communicator& world, const trace::Timeline& timeline,
                       double seconds);

// Rank 0 writes the spans of all ranks to `path`, as Chrome's trace format has them. Returns a line
// that says so, and `shares`. Collective.
std::string write_timeline(const mpi::Communicator& world, const trace::Timeline& timeline,
                           const LaneShares& shares, const std::string& path);

}  // namespace nearstep::train
