// What a run must know of its checkpoint folder before it relies on it: that all hosts share it,
// and how long a checkpoint takes there.
#pragma once

#include "config/engine_settings.hpp"
#include "engine/engine.hpp"
#include "mpi/communicator.hpp"

#include <string>
#include <vector>

namespace nearstep::engine {

// Makes a file in the folder, or in the nearest folder above it that is there, for a moment, by
// which all ranks know it. Collective. Throws ConfigError if it cannot be written, or is another
// one on some host.
void check_shared_folder(const mpi::Communicator& world, const std::string& folder);

// The lines that say how long a run needs to stop beside the notice that it has, in seconds; 0: it
// is not known. `time`: only with csd.durability "checkpoint".
std::vector<std::string> describe_notice(const config::EngineSettings& settings,
                                         const CheckpointTime& time, int notice_s);

}  // namespace nearstep::engine
