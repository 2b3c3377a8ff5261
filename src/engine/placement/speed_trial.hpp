// Measures how fast this rank's devices update state.
#pragma once

#include "engine/placement/placed_settings.hpp"
#include "mpi/communicator.hpp"
#include "nearstep/layout.hpp"

#include <cstddef>
#include <functional>
#include <vector>

namespace nearstep::engine {

// Tiles per second of a device.
struct TrialSpeeds {
    double of_read = 0;                // if state is read and written
    double of_kept = 0;                // if it is written only, because a slot keeps it
    std::size_t read_ahead_bytes = 0;  // memory for these slots
};

// Measures each drive of all ranks. Each drive repeats updates of a small state, with the run's
// formats, codec and flushes, while all others do the same. A trial's file is unlinked before it
// has content. Collective; throws ConfigError and IoError on all ranks alike.
std::vector<TrialSpeeds> measure_devices(const mpi::Communicator& world,
                                         const PlacedSettings& settings, const Layout& layout);

// Returns the speeds that trial() finds for all devices; 0 stands for no device. If one seems to
// have less than a quarter of another's speed, it may have been busy: then each device has the
// better of two trials.
std::vector<double> speeds_of_trials(const std::function<std::vector<double>()>& trial);

}  // namespace nearstep::engine
