// Tests that networks whose blocks come and go have the bits of those in place.
#include "feed/fetch_order.hpp"
#include "model/network.hpp"
#include "model/network_steps.hpp"
#include "support/test.hpp"

namespace nearstep::model {
namespace {

// Tests of a network that copies its blocks to slots, as on a GPU.
class NetworkWith : public testing::TestWithParam<Residence> {
protected:
    void SetUp() override {
        settings_.layers = 5;
        values_ = values_for(settings_);
        bytes_ = encode(values_, settings_.dtype);
        network_ = Network::make(settings_, bytes_, {}, GetParam());
    }

    config::ModelSettings settings_ = tiny(Dtype::bf16, config::ProductFormat::fp32);
    Floats values_;
    std::vector<std::byte> bytes_;
    std::unique_ptr<Network> network_;
    std::vector<Rows> rows_{draw(3, 8, 5, settings_.vocabulary),
                            draw(2, 5, 6, settings_.vocabulary),
                            draw(1, 8, 7, settings_.vocabulary)};
};

TEST_P(NetworkWith, HasTheBitsOfOneInPlace) {
    for (std::size_t count = 0; count <= rows_.size(); ++count) {  // more micro-batches each time
        const std::vector<Rows> rows(rows_.begin(), rows_.begin() + static_cast<long>(count));
        const Step expected = run_step(settings_, values_, rows);
        for (int repeat = 0; repeat < 2; ++repeat) {
            const Step step = run_step(*network_, rows);
            EXPECT_EQ(step.loss, expected.loss);
            EXPECT_EQ(step.gradient, expected.gradient);
        }
    }
    const auto in_place = Network::make(settings_, bytes_);
    EXPECT_EQ(network_->evaluate(rows_[0].view()), in_place->evaluate(rows_[0].view()));
    EXPECT_EQ(network_->sample(rows_[0].tokens, 6, 1, 2),
              in_place->sample(rows_[0].tokens, 6, 1, 2));
}

TEST_P(NetworkWith, HasTheBitsOfALlamaInPlace) {
    config::ModelSettings settings = tiny_llama(Dtype::bf16, config::ProductFormat::fp32);
    settings.layers = 5;
    const std::vector<std::byte> bytes = encode(values_for(settings), settings.dtype);
    const Step expected = run_step(*Network::make(settings, bytes), rows_);
    const Step step = run_step(*Network::make(settings, bytes, {}, GetParam()), rows_);
    EXPECT_EQ(step.loss, expected.loss);
    EXPECT_EQ(step.gradient, expected.gradient);
}

TEST_P(NetworkWith, ReadsABlockThatBecomesFinalBeforeItIsFetched) {
    const Step expected = run_step(settings_, values_, rows_);
    const std::vector<std::byte> final = bytes_;
    std::fill(bytes_.begin(), bytes_.end(), std::byte{0});
    std::vector<MicroBatch> batches;
    for (const Rows& part : rows_) {
        batches.push_back(part.view());
    }
    const Geometry& geometry = network_->geometry();
    network_->begin(batches, 1.0 / (3 * 8 + 2 * 5 + 8), 1);
    for (int block = 0; block < static_cast<int>(geometry.blocks.size()); ++block) {
        const Block& range = geometry.blocks[static_cast<std::size_t>(block)];
        std::copy(final.begin() + static_cast<long>(range.begin) * 2,
                  final.begin() + static_cast<long>(range.end) * 2,
                  bytes_.begin() + static_cast<long>(range.begin) * 2);
        network_->fetch(block);
        network_->forward(block);
    }
    EXPECT_EQ(network_->loss(), expected.loss);
}

TEST_P(NetworkWith, BringsEachBlockAtMostTwiceAStep) {
    const Geometry& geometry = network_->geometry();
    const std::size_t blocks = geometry.blocks.size();
    std::size_t fetched = 0;
    std::vector<feed::Visit> reads(blocks);
    for (std::size_t block = 0; block < blocks; ++block) {
        reads[block] = {static_cast<int>(block)};
    }
    reads.back().push_back(0);
    const int slots =
        GetParam().slots == 0 ? 0 : std::min(GetParam().slots, static_cast<int>(blocks));
    if (slots > 0) {
        for (const feed::Fetch& fetch :
             feed::order_fetches(feed::visits_of_step(reads), static_cast<int>(blocks), slots)) {
            const Block& range = geometry.blocks[static_cast<std::size_t>(fetch.block)];
            fetched += (range.end - range.begin) * 2;
        }
    }
    run_step(*network_, rows_);
    EXPECT_EQ(network_->traffic().parameter_bytes, fetched);
    const std::size_t inputs = (3 * 8 + 2 * 5 + 8) * 16 * sizeof(float);
    const std::size_t held = blocks - 2;  // all but the tokens and the last block's inputs
    EXPECT_LE(network_->traffic().input_bytes, 2 * held * (inputs + 3 * 512));
    EXPECT_EQ(network_->traffic().input_bytes > 0, GetParam().are_inputs_on_host);
}

INSTANTIATE_TEST_SUITE_P(Residence, NetworkWith,
                         testing::Values(Residence{}, Residence{.slots = 2}, Residence{.slots = 3},
                                         Residence{.slots = 6}, Residence{.slots = 99},
                                         Residence{.are_inputs_on_host = true},
                                         Residence{.kept_blocks = 2}, Residence{.kept_blocks = 5},
                                         Residence{.slots = 2, .are_inputs_on_host = true}));

}  // namespace
}  // namespace nearstep::model
