// Where a run begins: finds what earlier runs left and lets decide() choose.
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nearstep::engine {

// Number of steps in the whole run that wrote the checkpoint at `path`. `config` is the text that
// the checkpoint keeps (Identity::config).
using StepsOf = std::function<std::int64_t(const std::string& path, const std::string& config)>;

// What the user asks to begin with.
struct Wish {
    bool is_resuming = false;      // from the state files or the folder's newest checkpoint
    bool may_start_anew = false;   // with is_resuming: if nothing can be resumed
    bool is_fresh = false;         // start anew despite an unfinished run
    std::string resume_from = {};  // index of a checkpoint to resume from; empty: none
    StepsOf steps_of = {};
};

struct Found;
struct Decision;

// The input of begin(); the same on all ranks.
struct StartingPoint {
    std::shared_ptr<const Found> found;
    std::shared_ptr<const Decision> decision;
    int set = 0;  // EngineOptions::set
};

// Throws ConfigError if the settings' folders hold a run that is or may be unfinished. Looks at
// csd.path as this host sees it and, if `looks_at_checkpoints`, at the checkpoints.
void refuse_unfinished(const config::EngineSettings& settings, bool looks_at_checkpoints,
                       const StepsOf& steps_of);

// Looks at what is there and changes nothing. Collective. Throws ConfigError, on all ranks alike,
// if another process uses the state files, if foreign files are in the way, or if decide() refuses.
// Throws IoError if a file cannot be read for now.
StartingPoint find_starting_point(const mpi::Communicator& world,
                                  const config::EngineSettings& settings, std::size_t elems,
                                  const std::string& model, const Wish& wish);

// Whether the run continues no existing state.
bool begins_anew(const StartingPoint& start);

struct BeginReport {
    std::vector<std::string> lines = {};  // to tell the user
    std::int64_t checkpoint_step = -1;    // of the newest checkpoint in the folder; -1: none
};

}  // namespace nearstep::engine
