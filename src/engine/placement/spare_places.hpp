// Whether a run's devices keep one place for each subgroup and a log, or two places.
#pragma once

#include "engine/placement/placed_settings.hpp"
#include "mpi/communicator.hpp"
#include "nearstep/layout.hpp"
#include "nearstep/options.hpp"

namespace nearstep::engine {

// Sets spare_places, log_tile_bytes and logs. With csd.log state is stored in turns. Subgroups also
// share spare places where all state lies in memory, unless somebody needs what was before: cards,
// mode base and shaped links have two places, and so has a client that may go back a step. Throws
// ConfigError if csd.log does not fit. Collective.
void settle_places(const mpi::Communicator& world, PlacedSettings& settings, const Layout& layout,
                   const EngineOptions& options);

// Two places each, without a log.
void keep_two_places(PlacedSettings& settings);

}  // namespace nearstep::engine
