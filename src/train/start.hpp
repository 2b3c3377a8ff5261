// Where a run begins: anew, from the state files that an earlier one left, or from a checkpoint.
#pragma once

#include "config/run.hpp"
#include "data/tokenizer.hpp"
#include "mpi/communicator.hpp"
#include "store/manifest.hpp"
#include "train/run.hpp"
#include "train/trainer.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::train {

struct Start {
    // What the state files of all ranks hold, newest first; empty: nothing to go on from.
    std::vector<store::Commit> commits = {};
    std::string run = {};         // which the state files are of
    std::string checkpoint = {};  // index to go on from if the commits do not do; may be empty
    // Of the run's newest checkpoint, whether used or not; -1: there is none.
    std::int64_t checkpoint_step = -1;
    std::vector<std::string> notes = {};  // what was found and is not used, as sentences
    bool is_resuming = false;
};

// Throws ConfigError if the state files of the rank, whose csd.places are set, are of a run that
// has steps left.
void refuse_unfinished_state(const config::Run& run, int rank);

// The same of the newest checkpoint in the run's folder.
void refuse_unfinished_checkpoints(const config::Run& run);

// Looks at what is there and changes nothing. Collective. Throws ConfigError, on all ranks alike,
// if another process holds the state files, if an unfinished run is in the way, or if there is
// nothing to resume from.
Start find_start(const mpi::Communicator& world, const config::Run& run,
                 const data::Tokenizer& tokenizer, const RunOptions& options);

// Brings the trainer to that place: the newest commit that is whole, else the checkpoint, else the
// start values. Returns the lines to tell the user. Collective. Throws ConfigError as above.
std::vector<std::string> begin(Trainer& trainer, const Start& start);

}  // namespace nearstep::train
