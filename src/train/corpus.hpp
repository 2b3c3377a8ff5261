// A run's text as tokens, on all ranks.
#pragma once

#include "config/run.hpp"
#include "data/text.hpp"
#include "data/tokenizer.hpp"
#include "mpi/communicator.hpp"

#include <memory>

namespace nearstep::train {

// The tokenizer that data.train needs; it must fit the model. Collective; throws ConfigError on all
// ranks alike.
std::unique_ptr<data::Tokenizer> make_tokenizer(const mpi::Communicator& world,
                                                const config::Run& run);

// Every rank reads the text or maps the token file. Collective; throws ConfigError on all ranks
// alike, also if ranks read different texts.
data::Corpus load_corpus(const mpi::Communicator& world, const config::Run& run);

}  // namespace nearstep::train
