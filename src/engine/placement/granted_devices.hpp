// The devices of this host that a batch system gave the run.
#pragma once

#include "mpi/communicator.hpp"

#include <string>

namespace nearstep::engine {

// `given` if a rank has any (NEARSTEP_CSDS); else what Slurm says of the job that rank 0 is in,
// which is asked once for all ranks; empty without a job. Collective. Throws ConfigError, on all
// ranks alike, if the job has no devices, or not on the host of some rank.
std::string find_granted(const mpi::Communicator& world, const std::string& given);

}  // namespace nearstep::engine
