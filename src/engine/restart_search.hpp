// Finds what earlier runs left in the folders of a run. Changes nothing.
#pragma once

#include "config/engine_settings.hpp"
#include "engine/restart.hpp"
#include "engine/starting_point.hpp"
#include "mpi/communicator.hpp"

#include <cstddef>
#include <string>

namespace nearstep::engine {

// What all ranks find; the same on all. Collective. Throws ConfigError, on all ranks alike, if
// another process uses a state file, and IoError if a file cannot be read for now.
Found search(const mpi::Communicator& world, const config::EngineSettings& settings,
             std::size_t elems, const std::string& model, const Wish& wish);

// Throws IoError, on all ranks alike, if the manifests are not those that search() found.
// Collective. Another job may have gone on between the search and the moment when all ranks had
// their locks. What was decided could then undo its steps.
void check_unchanged(const mpi::Communicator& world, const config::EngineSettings& settings,
                     const Found& found);

// Whether this rank is the first of its node.
bool is_first_of_node(const mpi::Communicator& world, const Found& found);

// What this host finds, for a run without resume flags.
Found search_here(const config::EngineSettings& settings, bool looks_at_checkpoints,
                  const StepsOf& steps_of);

}  // namespace nearstep::engine
