// Checks of a run's checkpoint folder: that all hosts share it, and how long a checkpoint takes
// there.
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"
#include "nearstep/options.hpp"

#include <string>
#include <vector>

namespace nearstep::engine {

// Throws ConfigError if the folder cannot be written or is not shared by all hosts. To find out,
// rank 0 makes a temporary file in it, or in its nearest parent that exists. Collective.
void check_shared_folder(const mpi::Communicator& world, const std::string& folder);

// Lines that say how long a checkpoint takes and whether it fits into `notice_s`, the seconds a run
// gets to stop (0: unknown). `time` is used only with csd.durability "checkpoint".
std::vector<std::string> describe_notice(const config::EngineSettings& settings,
                                         const CheckpointTime& time, int notice_s);

}  // namespace nearstep::engine
