// The start of a run: its devices, what earlier runs left, and the choice among that.
#pragma once

#include "config/engine_settings.hpp"
#include "engine/placement/placed_settings.hpp"
#include "engine/restart/decide.hpp"
#include "mpi/communicator.hpp"
#include "nearstep/layout.hpp"
#include "nearstep/options.hpp"
#include "nearstep/start_request.hpp"

#include <string>
#include <vector>

namespace nearstep::engine {

// The beginning of a run. All ranks have the same values, except for PlacedSettings::places.
struct Start {
    PlacedSettings settings;
    Findings found;
    Decision decision;
    double search_s = 0;  // without measuring devices
};

// Looks at what is there and changes nothing. Collective. Throws ConfigError, on all ranks alike,
// if another process uses the state files, if foreign files are in the way, or if the request
// cannot be fulfilled. Throws IoError if a file cannot be read for now.
Start find_start(const mpi::Communicator& world, const config::EngineSettings& settings,
                 const Layout& layout, const StartRequest& request, const std::string& model,
                 const EngineOptions& options);

// Throws ConfigError if a log that this rank will write has steps of a run whose state is in
// another folder: runs with a csd.path each may name one folder in csd.log. Not collective. A start
// calls it again with the locks of the files, since another run may have begun there meanwhile.
void refuse_logs_of_others(const PlacedSettings& settings, const mpi::Communicator& world, int set,
                           const Findings& found);

// The speeds that the newest manifest of the run's ranks lists, if the request goes on with a run
// and that manifest is of these devices of each rank; else empty.
std::vector<double> known_speeds(const Findings& found, const std::vector<int>& devices);

// Throws ConfigError if the settings' folders hold a run that is or may be unfinished. Looks at
// csd.path as this host sees it and, if `looks_at_checkpoints`, at the checkpoints.
void refuse_unfinished(const config::EngineSettings& settings, bool looks_at_checkpoints,
                       const StepsOf& steps_of);

}  // namespace nearstep::engine
