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

}  // namespace nearstep::engine
