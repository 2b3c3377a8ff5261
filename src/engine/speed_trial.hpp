// Measures how many tiles this rank's devices update per second.
#pragma once

#include "base/dtype.hpp"
#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"

#include <cstddef>
#include <vector>

namespace nearstep::engine {

// Tiles per second of each device of all ranks, rounded to two digits. Each device repeats updates
// of a small state, with the run's formats, codec and flushes, while all others do the same. Its
// file is unlinked before it has content. Collective; throws ConfigError and IoError on all ranks
// alike.
std::vector<double> measure_devices(const mpi::Communicator& world,
                                    const config::EngineSettings& settings, std::size_t elems,
                                    Dtype dtype);

}  // namespace nearstep::engine
