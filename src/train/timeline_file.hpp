// Writes the timelines of all ranks to one file.
#pragma once

#include "mpi/communicator.hpp"
#include "report/record.hpp"
#include "trace/timeline.hpp"

#include <optional>
#include <string>

namespace nearstep::train {

// Aligns the ranks' times to within a barrier. Call before the first step. Collective.
void begin_timeline(const mpi::Communicator& world, std::optional<trace::Timeline>& timeline);

// How busy each lane was during `seconds` of steps: seconds of work, of all devices, per second and
// rank. The sum is how many lanes worked at once. Collective.
report::LaneShares lane_shares(const mpi::Communicator& world, const trace::Timeline& timeline,
                               double seconds);

// Rank 0 writes all ranks' spans to `path` in Chrome's trace format. Returns a line that says so,
// with `shares`. Collective.
std::string write_timeline(const mpi::Communicator& world, const trace::Timeline& timeline,
                           const report::LaneShares& shares, const std::string& path);

}  // namespace nearstep::train
