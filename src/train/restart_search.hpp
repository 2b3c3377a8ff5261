// Looks for what earlier runs left in the folders of a run. Nothing is changed.
#pragma once

#include "config/run.hpp"
#include "data/tokenizer.hpp"
#include "mpi/communicator.hpp"
#include "train/restart.hpp"
#include "train/run.hpp"

namespace nearstep::train {

// What all ranks find, the same on all. Collective. Throws ConfigError, on all ranks alike, if
// another process holds a state file; IoError if what is there cannot be read, but may do later.
Found search(const mpi::Communicator& world, const config::Run& run,
             const data::Tokenizer& tokenizer, const RunOptions& options);

// What this host sees, for a run without flags.
Found search_here(const config::Run& run, bool looks_at_checkpoints);

}  // namespace nearstep::train
