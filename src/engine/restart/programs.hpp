// Finds whose program state each rank goes on with, and goes back to a step. No I/O and no MPI,
// like decide().
#pragma once

#include "engine/restart/state_groups.hpp"

#include <cstdint>

namespace nearstep::engine {

// A rank goes on with its own if the run has as many ranks as before and all manifests are there;
// otherwise all ranks go on with that of the first rank whose manifest is there. Nothing is needed
// for ranks that serve.
ProgramsAt programs_at(const Findings& found, const StateGroup& group, std::int64_t step);

// Leaves out the group's commits whose program state is not whole, if the client needs it, and
// notes what is missing of the newest one.
void keep_whole_programs(const Findings& found, StateGroup& group);

// Drops the steps after that one, and what the programs kept after it. Returns whether the decision
// is to go on with a state that has the step.
bool go_back_to(std::int64_t step, const Findings& found, Decision& decision);

}  // namespace nearstep::engine
