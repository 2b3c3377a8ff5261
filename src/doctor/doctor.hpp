// nearstep doctor: what each node has, and which path each part of a run takes there.
#pragma once

#include "config/run.hpp"
#include "mpi/communicator.hpp"

#include <string>

namespace nearstep::doctor {

// Rank 0 prints a report per node, found by the node's first rank with that rank's settings, and
// writes all of them to the file `json` unless it is empty. Collective. Leaves nothing behind
// elsewhere. Throws ConfigError if `json` cannot be written.
void examine(const mpi::Communicator& world, const config::Run& run, const std::string& json);

}  // namespace nearstep::doctor
