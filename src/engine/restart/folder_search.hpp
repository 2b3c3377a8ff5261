// Finds what one host sees of earlier runs in a run's folders. Nothing here changes a file.
#pragma once

#include "config/engine_settings.hpp"
#include "engine/restart/decide.hpp"
#include "nearstep/start_request.hpp"

#include <string>
#include <vector>

namespace nearstep::engine {

// Each folder of csd.path once, in its order, and the folder in memory, which an earlier run may
// have used for state files. Any user may make a folder of that name, so it counts only if it is
// this user's alone.
std::vector<std::string> state_folders(const config::EngineSettings& settings);

// All manifests in `named`, as sort_by_rank() orders them. Their files may be in any of `folders`.
// Throws IoError or ConfigError if a folder cannot be listed.
std::vector<FoundManifest> look_for_manifests(const std::vector<std::string>& named,
                                              const std::vector<std::string>& folders);
// Finds the manifests in the folders of csd.path.
std::vector<FoundManifest> look_for_manifests(const config::EngineSettings& settings);

// Orders by rank, set and path.
void sort_by_rank(std::vector<FoundManifest>& manifests);

// State files in the folders that no manifest names.
std::vector<FoundRemains> look_for_remains(const config::EngineSettings& settings,
                                           const std::vector<FoundManifest>& manifests);

// Sets where the folders of csd.path have what these manifests say of their programs.
void look_for_programs(const config::EngineSettings& settings,
                       std::vector<FoundManifest>& manifests);

// `steps_of` is empty if the steps do not matter. Throws ConfigError if the checkpoint is damaged,
// or what the program kept with it, if that is needed.
FoundCheckpoint open_checkpoint(const std::string& path, const StepsOf& steps_of,
                                ProgramUse program = ProgramUse::none);
// Lists the checkpoints in the run's folder, newest first. Damaged ones are listed, too.
std::vector<FoundCheckpoint> look_for_checkpoints(const config::EngineSettings& settings,
                                                  const StepsOf& steps_of,
                                                  ProgramUse program = ProgramUse::none);

// Searches the folders that this host sees, for a run without resume flags.
Findings search_here(const config::EngineSettings& settings, bool looks_at_checkpoints,
                     const StepsOf& steps_of);

}  // namespace nearstep::engine
