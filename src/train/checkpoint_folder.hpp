// What a run must know of its checkpoint folder before it relies on it: that all hosts share it,
// and how long a checkpoint takes there.
#pragma once

#include "config/run.hpp"
#include "mpi/communicator.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace nearstep::train {

// Makes the folder if it is not there, and in it, for a moment, a file by which all ranks know it.
// Collective. Throws ConfigError if it cannot be written, or is another folder on some host.
void check_shared_folder(const mpi::Communicator& world, const std::string& folder);

// How long a checkpoint takes, by a part of it that was read and written.
struct CheckpointTime {
    double seconds = 0;
    double bytes = 0;         // of all ranks
    double probed_bytes = 0;  // likewise: the part
};

// The lines that say how long a run needs to stop beside the notice that it has, in seconds; 0: it
// is not known. `time`: only with csd.durability "checkpoint".
std::vector<std::string> describe_notice(const config::Run& run, const CheckpointTime& time,
                                         int notice_s);

}  // namespace nearstep::train
