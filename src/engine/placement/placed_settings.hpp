// A run's settings, with what its start decides about its devices.
#pragma once

#include "config/engine_settings.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace nearstep::engine {

// Settings whose devices are placed. csd.per_rank has the devices of all ranks.
struct PlacedSettings : config::EngineSettings {
    std::vector<int> places = {};     // in csd.path, of this rank's drives
    std::vector<double> speeds = {};  // of each device of all ranks; empty: as csd.speed says
    std::vector<int> nodes = {};      // of each rank; empty: all are in one
    // Places that the subgroups of each device share beside one each, see csd::StateLayout; 0: each
    // subgroup has two of its own.
    std::size_t spare_places = 0;
    std::size_t log_tile_bytes = 0;  // of a tile's payloads in a log of a device; 0: none has one
    // Logs of each device, see csd::StateVolumeSettings. Several: for csd.log.
    std::size_t logs = 1;
};

}  // namespace nearstep::engine
