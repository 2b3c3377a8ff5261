// A run's settings, with what its start decides about its devices.
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"

#include <string>
#include <vector>

namespace nearstep::engine {

// csd.per_rank is that of all ranks.
struct Placed : config::EngineSettings {
    std::vector<int> places = {};     // in csd.path, of this rank's drives
    std::vector<double> speeds = {};  // of each device of all ranks; empty: as csd.speed says
    std::vector<int> nodes = {};      // of each rank; empty: all are in one
};

// What a batch system and the client say about csd.path.
struct Grant {
    std::string positions = {};    // see find_granted()
    bool divides_folders = false;  // the ranks of a node divide its folders, without csd.per_rank
};

// Positions of this host's devices: `given` if a rank has any (NEARSTEP_CSDS); else what Slurm says
// of the job that rank 0 is in, which is asked once for all ranks; empty without a job. Collective.
// Throws ConfigError, on all ranks alike, if the job has no devices, or not on the host of some
// rank.
std::string find_granted(const mpi::Communicator& world, const std::string& given);

// Where the parameters lie that a client computes with: all in the parameter vector, or in the
// state alone, from which Engine::read_parameters() reads them. That takes one rank, and neither
// cards nor deltas.
enum class ParameterHome { vector, state };

}  // namespace nearstep::engine
