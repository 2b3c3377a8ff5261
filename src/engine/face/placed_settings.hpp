// A run's settings, with what its start decides about its devices.
#pragma once

#include "config/engine_settings.hpp"

#include <string>
#include <vector>

namespace nearstep::engine {

// Settings whose devices are placed. csd.per_rank has the devices of all ranks.
struct PlacedSettings : config::EngineSettings {
    std::vector<int> places = {};     // in csd.path, of this rank's drives
    std::vector<double> speeds = {};  // of each device of all ranks; empty: as csd.speed says
    std::vector<int> nodes = {};      // of each rank; empty: all are in one
};

// Devices that a batch system or the client grants out of csd.path.
struct Grant {
    // The positions in csd.path of this host's devices (NEARSTEP_CSDS). Empty on all ranks: what
    // Slurm says of rank 0's job decides.
    std::string positions = {};
    bool divides_folders = false;  // the ranks of a node divide its folders, without csd.per_rank
};

// Where the parameters lie that a client computes with: all in the parameter vector, or in the
// state alone, from which Run::read_parameters() reads them. That takes one rank, and neither
// cards nor deltas.
enum class ParameterHome { vector, state };

}  // namespace nearstep::engine
