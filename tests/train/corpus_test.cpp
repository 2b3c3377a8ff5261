#include "train/corpus.hpp"

#include "base/error.hpp"
#include "data/small_tokenizer.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

namespace nearstep::train {
namespace {

// Files in a folder that all ranks see, made by rank 0 and removed at the end.
class Corpus : public testing::Test {
protected:
    Corpus() {
        run_.model.context = 8;
        run_.model.vocabulary = 262;
        run_.data.train = {folder_ + "/text"};
        if (world_.rank() == 0) {
            std::filesystem::remove_all(folder_);
            std::filesystem::create_directories(folder_);
            data::write_small_tokenizer(folder_);
            std::ofstream text(folder_ + "/text");
            std::ofstream other(folder_ + "/other");
            for (int i = 0; i < 5000; ++i) {
                text << (i % 3 == 0 ? "abc" : "aaaab") << i * i % 101 << (i % 7 == 0 ? "\n" : " ");
                other << "another ";
            }
        }
        world_.barrier();
    }
    ~Corpus() override {
        world_.barrier();
        if (world_.rank() == 0) {
            std::filesystem::remove_all(folder_);
        }
    }

    mpi::Communicator world_ = mpi::Communicator::world(std::chrono::seconds(60));
    std::string folder_ =
        testing::TempDir() + "nearstep_corpus_test_" + std::to_string(world_.size());
    config::Run run_;
};

TEST_F(Corpus, HasTheTokensOfTheWholeTextOnEveryRank) {
    for (const std::string& setting : {std::string("bytes"), folder_}) {
        run_.data.tokenizer = setting;
        const auto tokenizer = make_tokenizer(world_, run_);
        const data::Corpus corpus = load_corpus(world_, run_, *tokenizer);
        const data::CorpusText text = data::read_corpus(run_.data);
        EXPECT_EQ(corpus.train, tokenizer->encode(text.train, 1)) << setting;
        EXPECT_EQ(corpus.valid, tokenizer->encode(text.valid, 1)) << setting;
    }
}

TEST_F(Corpus, IsRefusedIfRanksReadDifferentTexts) {
    if (world_.size() == 1) {
        GTEST_SKIP() << "one rank reads one text";
    }
    run_.data.tokenizer = folder_;
    const auto tokenizer = make_tokenizer(world_, run_);
    if (world_.rank() == world_.size() - 1) {
        run_.data.train = {folder_ + "/other"};
    }
    EXPECT_THROW(load_corpus(world_, run_, *tokenizer), ConfigError);
}

TEST_F(Corpus, IsRefusedOnAllRanksIfOneCannotReadItsTokenizer) {
    run_.data.tokenizer = world_.rank() == 0 ? folder_ + "/nowhere" : folder_;
    EXPECT_THROW(make_tokenizer(world_, run_), ConfigError);
}

}  // namespace
}  // namespace nearstep::train
