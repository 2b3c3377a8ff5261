// How a run's devices keep their state: in two places for each subgroup, in one, or with logs.
#pragma once

#include "csd/keeping.hpp"
#include "engine/placement/placed_settings.hpp"
#include "mpi/communicator.hpp"
#include "mpi/topology.hpp"
#include "nearstep/layout.hpp"
#include "nearstep/options.hpp"
#include "shard/ownership.hpp"

namespace nearstep::engine {

// How one rank can keep its state. `logs` counts only with Keeping::logged.
struct RankKeeping {
    csd::Keeping keeping = csd::Keeping::twice;
    std::size_t logs = csd::kUsualLogs;
};

// State is logged with csd.log, and kept as plan::keeping_of() says without. A client that may go
// back a durable step has two places. `ranks_of_host` share the memory of the rank's host. Throws
// ConfigError if csd.log does not fit.
RankKeeping keeping_of_rank(const PlacedSettings& settings, const Layout& layout,
                            const EngineOptions& options, const mpi::Topology& nodes, int rank,
                            std::size_t ranks_of_host);

// Sets spare_places, log_tile_bytes and logs for what all ranks can do.
void set_keeping(PlacedSettings& settings, const Layout& layout, const mpi::Topology& nodes,
                 const RankKeeping& of_all);

// Does both for all ranks. Collective.
void resolve_places(const mpi::Communicator& world, PlacedSettings& settings, const Layout& layout,
                    const EngineOptions& options);

// The device with the most subgroups, if state is logged.
csd::LoggedState largest_logged(const PlacedSettings& settings, const shard::Ownership& owners);

// Two places each, without a log.
void keep_two_places(PlacedSettings& settings);

}  // namespace nearstep::engine
