// Where a run begins: looks for what earlier runs left, lets decide() choose, and does it.
#pragma once

#include "config/run.hpp"
#include "data/tokenizer.hpp"
#include "mpi/communicator.hpp"
#include "train/restart.hpp"
#include "train/run.hpp"
#include "train/trainer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::train {

struct Start {
    Found found;  // the same on all ranks
    Decision decision;
};

// Throws ConfigError if the folders of `run` hold a run that has steps left, or may: those of
// csd.path as this host sees them and, if `looks_at_checkpoints`, that of the checkpoints.
void refuse_unfinished(const config::Run& run, bool looks_at_checkpoints);

// Looks at what is there and changes nothing. Collective. Throws ConfigError, on all ranks alike,
// if another process holds the state files or if the decision is to refuse; IoError if a file
// cannot be read that may do later.
Start find_start(const mpi::Communicator& world, const config::Run& run,
                 const data::Tokenizer& tokenizer, const RunOptions& options);

struct Begun {
    std::vector<std::string> lines = {};  // to tell the user
    std::int64_t checkpoint_step = -1;    // of the newest checkpoint in the run's folder; -1: none
};

// Brings the trainer, which has the decision's set of files, to that place. Collective. Throws as
// find_start(), and then what was durable before still is.
Begun begin(Trainer& trainer, const mpi::Communicator& world, const config::Run& run,
            const Start& start);

}  // namespace nearstep::train
