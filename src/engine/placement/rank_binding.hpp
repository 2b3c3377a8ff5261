// Binds each rank to the NUMA node of its GPU and drives.
#pragma once

#include "mpi/communicator.hpp"

#include <optional>
#include <string>
#include <vector>

namespace nearstep::engine {

// Binds all threads of this process, and those that they start. Ranks stay as they are on a host
// with one node, or with fewer ranks than nodes, and where a launcher or the user has bound any of
// them. Returns lines that say which rank is where and what is near it, the same on all ranks.
// `files`: on this rank's drives. `gpu`: this rank's. Collective.
std::vector<std::string> bind_near_devices(const mpi::Communicator& world,
                                           const std::vector<std::string>& files,
                                           std::optional<int> gpu);

}  // namespace nearstep::engine
