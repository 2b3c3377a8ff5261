// Loads a run's text and brings it to all ranks. Used by the trainer's loop and compare.cpp.
#include "train/corpus.hpp"

#include "base/error.hpp"

#include <iostream>
#include <string>

namespace nearstep::train {

data::Corpus load_corpus(const mpi::Communicator& world, const config::RunSettings& run) {
    data::Corpus corpus;
    const bool reads = world.rank() < config::computing_ranks(run, world.size());
    world.together([&] {
        if (!reads) {
            return;
        }
        corpus = data::read_corpus(run.data);
        data::check_vocabulary(*corpus.tokenizer, run.model.vocabulary);
    });
    const std::string mine = corpus.train_digest + corpus.valid_digest;
    const std::string first = world.broadcast(mine, 0);
    corpus.train_digest = world.broadcast(corpus.train_digest, 0);
    world.together([&] {
        if (!reads) {
            return;
        }
        if (mine != first) {
            throw ConfigError(text("Rank ", world.rank(),
                                   " reads another text than rank 0: give all nodes the same "
                                   "files in data.train and data.valid."));
        }
        data::check_lengths(corpus, run.data, run.model.context);
    });
    if (world.rank() == 0) {
        for (const std::string& note : corpus.notes) {
            std::cout << note << std::endl;
        }
    }
    return corpus;
}

}  // namespace nearstep::train
