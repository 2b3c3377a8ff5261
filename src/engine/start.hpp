// Where a run begins: looks for what earlier runs left, and lets decide() choose.
#pragma once

#include "config/engine_settings.hpp"
#include "mpi/communicator.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace nearstep::engine {

// Steps of the whole run that wrote a checkpoint, by the text of its settings that the checkpoint
// at `path` keeps (Identity::config).
using StepsOf = std::function<std::int64_t(const std::string& path, const std::string& config)>;

// What the user wants to begin with.
struct Wish {
    bool is_resuming = false;     // from the state files, or the newest checkpoint in the folder
    bool may_start_anew = false;  // with is_resuming, if there is nothing to resume from
    bool is_fresh = false;        // start anew although an unfinished run is there
    std::string resume_from;      // index of a checkpoint to go on from; empty: the choice is ours
    StepsOf steps_of = {};
};

struct Found;
struct Decision;

// What begin() goes by; the same on all ranks.
struct Start {
    std::shared_ptr<const Found> found;
    std::shared_ptr<const Decision> decision;
    int set = 0;  // EngineOptions::set
};

// Throws ConfigError if the folders of the settings hold a run that has steps left, or may: those
// of csd.path as this host sees them and, if `looks_at_checkpoints`, that of the checkpoints.
void refuse_unfinished(const config::EngineSettings& settings, bool looks_at_checkpoints,
                       const StepsOf& steps_of);

// Looks at what is there and changes nothing. Collective. Throws ConfigError, on all ranks alike,
// if another process holds the state files, if foreign files are in the way, or if the decision is
// to refuse; IoError if a file cannot be read that may do later.
Start find_start(const mpi::Communicator& world, const config::EngineSettings& settings,
                 std::size_t elems, const std::string& model, const Wish& wish);

// Whether no state is there that is gone on with.
bool begins_anew(const Start& start);

struct Begun {
    std::vector<std::string> lines = {};  // to tell the user
    std::int64_t checkpoint_step = -1;    // of the newest checkpoint in the folder; -1: none
};

}  // namespace nearstep::engine
