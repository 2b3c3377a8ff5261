// How fast each device is, so that all devices end an update together: csd.speed = "auto".
#pragma once

#include "config/engine_settings.hpp"
#include "engine/placement/placed_settings.hpp"
#include "mpi/communicator.hpp"
#include "nearstep/layout.hpp"
#include "shard/ownership.hpp"

#include <string>
#include <vector>

namespace nearstep::engine {

// Whether resolve_speeds() may measure the devices.
bool measures_speeds(const config::EngineSettings& settings);

// Sets PlacedSettings::speeds, and csd.tiers.memory where that is "auto". Leaves no speeds if
// csd.speed has numbers and all state lies on drives. With csd.speed = "auto", or with "auto" for
// memory, it takes the known speeds, so that a restart finds its layout. Else with csd.speed =
// "auto" all ranks measure all their drives at once, for two to four seconds, with temporary files
// in their folders. Cards, and drives in mode base, are not measured and count as equal.
// Collective; throws ConfigError and IoError on all ranks alike. `known`: of these devices, from an
// earlier run; empty: unknown.
void resolve_speeds(const mpi::Communicator& world, PlacedSettings& settings, const Layout& layout,
                    const std::vector<double>& known);

// Tiles per second of a device: of those that are read and written, and of those that are written
// only, because slots keep them: all tiles, if they are no more than `if_all_fit`, else
// `otherwise`.
struct UnequalDevice {
    double of_read = 0;
    double of_kept = 0;
    double if_all_fit = 0;
    double otherwise = 0;
};

// The tiles per second of each device if all end an update of `tiles` tiles at the same time.
// Shares of the state in this ratio make them do so.
std::vector<double> balanced_speeds(const std::vector<UnequalDevice>& devices, double tiles);

// Sentences about measured speeds and about tiers, for a run's first lines.
std::vector<std::string> describe_speeds(const PlacedSettings& settings,
                                         const shard::Ownership& owners);

}  // namespace nearstep::engine
