// A run's text as tokens, on all ranks.
#pragma once

#include "config/run_settings.hpp"
#include "data/text.hpp"
#include "mpi/communicator.hpp"

namespace nearstep::train {

// Every rank that computes reads the text or maps the token file; others get the digests alone, and
// no tokenizer. Collective; throws ConfigError on all ranks alike, also if ranks read different
// texts or if the tokens do not fit the model.
data::Corpus load_corpus(const mpi::Communicator& world, const config::RunSettings& run);

}  // namespace nearstep::train
