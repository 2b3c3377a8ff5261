// How much of a rank's state lies in GPU memory, in host memory and on drives: csd.tiers.
#pragma once

#include "engine/placement/placed_settings.hpp"
#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "nearstep/options.hpp"
#include "shard/ownership.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace nearstep::engine {

struct DeviceSurroundings;

// Replaces csd.tiers.gpu = "auto" by half of what the network leaves free on the rank that has
// least; by nothing if every step is durable. Collective; throws ConfigError on all ranks alike if
// a rank that should keep state in GPU memory has no GPU.
void resolve_gpu(const mpi::Communicator& world, PlacedSettings& settings,
                 const EngineOptions& options);

// Replaces csd.tiers.memory = "auto" by a rank's part of half of its host's free memory, on the
// rank that has least. Collective.
void resolve_memory(const mpi::Communicator& world, PlacedSettings& settings);

// Sets the speeds of devices of `copy_ranks`, which hold one copy of the state, so that those of a
// tier hold what csd.tiers says, the fastest tier first, and its drives the rest in the ratio of
// their speeds. Does nothing if all state lies on drives. Throws ConfigError if the copy has no
// drives for the rest.
void resolve_tiers(PlacedSettings& settings, std::size_t elems, const std::vector<int>& copy_ranks,
                   int ranks);

// Does resolve_tiers() for each copy of the state.
void resolve_all_tiers(PlacedSettings& settings, std::size_t elems, const mpi::Topology& nodes);

// Bytes of one generation of the state in each tier: of the rank that has most there, and of all
// ranks. In mode base none are counted.
struct StateBytes {
    config::TierBytes most;
    config::TierBytes all;
};
StateBytes state_in_tiers(const PlacedSettings& settings, const shard::Ownership& owners);

// Memory for further slots of a device: the host's if its state lies on a drive, the GPU's if it
// lies in memory.
struct ReadAheadBytes {
    std::size_t host = 0;
    std::size_t gpu = 0;
};
// Memory to read ahead with, for each of this rank's devices, which have these tiers and state
// files. A device in GPU memory reads nothing and gets none.
std::vector<ReadAheadBytes> read_ahead_bytes(const config::EngineSettings& settings,
                                             const std::vector<config::Tier>& tiers,
                                             const std::vector<std::string>& state_files,
                                             const DeviceSurroundings& around);

// Throws PathError if the folder of csd.tiers.memory, if the run has one, is there and not this
// user's alone.
void check_memory_folder(const config::EngineSettings& settings);

// Makes that folder, for this user alone. Throws PathError.
void make_memory_folder(const config::EngineSettings& settings);

// A sentence on each tier and what it survives; none if all state lies on drives.
std::vector<std::string> describe_tiers(const PlacedSettings& settings,
                                        const shard::Ownership& owners);

// Few enough digits to be the same after a layout line was printed and read.
double four_digits(double value);

}  // namespace nearstep::engine
