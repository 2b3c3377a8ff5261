// Finds what earlier runs left in the folders of a run. Changes nothing.
#pragma once

#include "config/engine_settings.hpp"
#include "engine/placement/placed_settings.hpp"
#include "engine/restart/decide.hpp"
#include "mpi/communicator.hpp"

#include <string>

namespace nearstep::engine {

// Searches the folders of csd.path on all ranks; the result is the same on all. Seats have no
// layouts yet. Collective. Throws ConfigError, on all ranks alike, if another process uses a state
// file, and IoError if a file cannot be read for now.
Findings find_states(const mpi::Communicator& world, const PlacedSettings& settings,
                     const std::string& model, const StartRequest& request, ProgramUse program);

// Adds the checkpoints, those in the run's folder and the one that the request names. Collective;
// throws as find_states() does, and if a newer step lies in a folder that csd.path named before.
void find_checkpoints(const mpi::Communicator& world, const config::EngineSettings& settings,
                      const StepsOf& steps_of, Findings& found);

// Throws IoError, on all ranks alike, if the manifests are not those that find_states() found.
// Collective. Another job may have trained on between the search and the moment when all ranks had
// their locks, and this run would then undo that job's steps.
void check_unchanged(const mpi::Communicator& world, const config::EngineSettings& settings,
                     const Findings& found);

// Whether this rank is the first of its node.
bool is_first_of_node(const mpi::Communicator& world, const Findings& found);

}  // namespace nearstep::engine
