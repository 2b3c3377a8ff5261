// Tests that all ranks have the same tokens of the text.
#include "train/corpus.hpp"

#include "data/small_token_file.hpp"
#include "support/places.hpp"
#include "support/test.hpp"

namespace nearstep::train {
namespace {

// Files in a folder shared by all ranks. Rank 0 makes them and removes them at the end.
class Corpus : public testing::Test {
protected:
    Corpus() {
        run_.model.context = 8;
        run_.model.vocabulary = 262;
        run_.data.train = {folder_ + "/text"};
        if (world_.rank() == 0) {
            std::filesystem::remove_all(folder_);
            std::filesystem::create_directories(folder_);
            std::ofstream(folder_ + "/tokens", std::ios::binary) << data::SmallTokenFile().bytes();
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
        std::string(test::kBuildFolder) + "/corpus-test-" + std::to_string(world_.size());
    config::RunSettings run_;
};

TEST_F(Corpus, HasTheTokensOfTheWholeTextOnEveryRank) {
    const data::Corpus corpus = load_corpus(world_, run_);
    const data::Corpus alone = data::read_corpus(run_.data);
    EXPECT_EQ(corpus.train.size(), alone.train.size());
    EXPECT_EQ(corpus.train_digest, alone.train_digest);
    EXPECT_EQ(corpus.valid_digest, alone.valid_digest);
}

TEST_F(Corpus, IsRefusedIfRanksReadDifferentTexts) {
    if (world_.size() == 1) {
        GTEST_SKIP() << "one rank reads one text";
    }
    if (world_.rank() == world_.size() - 1) {
        run_.data.train = {folder_ + "/other"};
    }
    EXPECT_THROW(load_corpus(world_, run_), ConfigError);
}

TEST_F(Corpus, IsRefusedOnAllRanksIfOneCannotReadItsTokenFile) {
    run_.data.train = {folder_ + "/tokens"};
    run_.data.valid = run_.data.train;
    run_.model.context = 2;
    const data::Corpus corpus = load_corpus(world_, run_);
    EXPECT_EQ(corpus.tokenizer->vocabulary(), 4U);
    EXPECT_EQ(corpus.train.size(), 10U);
    if (world_.rank() == 0) {
        run_.data.train = {folder_ + "/nowhere"};
    }
    EXPECT_THROW(load_corpus(world_, run_), ConfigError);
}

}  // namespace
}  // namespace nearstep::train
