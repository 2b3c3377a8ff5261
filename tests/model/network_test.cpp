#include "model/network.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "model/fetch_order.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace nearstep::model {
namespace {

using Floats = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

config::ModelSettings tiny(Dtype dtype = Dtype::fp32, const std::string& compute = "fp32") {
    return {.layers = 2,
            .heads = 2,
            .width = 16,
            .context = 8,
            .vocabulary = 23,
            .dtype = dtype,
            .compute = compute};
}

// Start values moved by 0.1, so that no bias is 0 and no norm's weight is 1.
Floats values_for(const config::ModelSettings& settings) {
    const Geometry geometry = describe(settings);
    Floats values(geometry.elems);
    fill_start_values(geometry, 1, 0, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] += static_cast<float>(0.1 * random_normal(2, 0, i));
    }
    return values;
}

std::vector<std::byte> encode(const Floats& values, Dtype dtype) {
    std::vector<std::byte> bytes(values.size() * size_bytes(dtype));
    convert_from_fp32(values.data(), dtype, bytes.data(), values.size());
    return bytes;
}

struct Rows {
    int rows = 0;
    int columns = 0;
    Tokens tokens = {};
    Tokens targets = {};

    MicroBatch view() const { return {rows, columns, tokens, targets}; }
};

Rows draw(int rows, int columns, std::uint64_t seed, int vocabulary) {
    Rows drawn{.rows = rows, .columns = columns};
    for (int i = 0; i < rows * columns; ++i) {
        const auto index = static_cast<std::uint64_t>(i);
        drawn.tokens.push_back(
            static_cast<std::int32_t>(random_uniform(seed, 0, index) * vocabulary));
        drawn.targets.push_back(
            static_cast<std::int32_t>(random_uniform(seed, 1, index) * vocabulary));
    }
    return drawn;
}

struct Step {
    double loss = 0;
    Floats gradient;
};

// One step through all blocks; weights are those of the mean over all tokens.
Step run_step(Network& network, const std::vector<Rows>& rows, double loss_scale = 1) {
    std::vector<MicroBatch> batches;
    std::size_t tokens = 0;
    for (const Rows& part : rows) {
        batches.push_back(part.view());
        tokens += part.tokens.size();
    }
    const Geometry& geometry = network.geometry();
    Step step{.loss = 0,
              .gradient = Floats(geometry.elems, std::numeric_limits<float>::quiet_NaN())};
    network.begin(batches, tokens > 0 ? 1.0 / static_cast<double>(tokens) : 1.0, loss_scale);
    const int blocks = static_cast<int>(geometry.blocks.size());
    for (int block = 0; block < blocks; ++block) {
        network.forward(block);
    }
    step.loss = network.loss();
    for (int block = blocks - 1; block >= 0; --block) {
        const Block& range = geometry.blocks[static_cast<std::size_t>(block)];
        network.backward(block,
                         std::span(step.gradient).subspan(range.begin, range.end - range.begin));
    }
    return step;
}

Step run_step(const config::ModelSettings& settings, const Floats& values,
              const std::vector<Rows>& rows, double loss_scale = 1) {
    const std::vector<std::byte> bytes = encode(values, settings.dtype);
    return run_step(*Network::make(settings, bytes), rows, loss_scale);
}

double norm_of(const Floats& values) {
    double squares = 0;
    for (const float value : values) {
        squares += static_cast<double>(value) * value;
    }
    return std::sqrt(squares);
}

double distance(const Floats& a, const Floats& b) {
    Floats difference(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference[i] = a[i] - b[i];
    }
    return norm_of(difference);
}

// GPT-2 as one graph over one leaf, from elementary operations only.
class Reference {
public:
    Reference(const config::ModelSettings& settings, Floats& values)
        : settings_(settings), geometry_(describe(settings)) {
        vector_ =
            at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kFloat)
                .clone()
                .requires_grad_(true);
    }

    Step step(const std::vector<Rows>& rows) const {
        at::Tensor sum = at::zeros({}, at::kFloat);
        double tokens = 0;
        for (const Rows& part : rows) {
            const at::Tensor log_share = at::log_softmax(logits(part), -1);
            sum = sum - log_share.gather(-1, tensor(part.targets, part).unsqueeze(-1)).sum();
            tokens += static_cast<double>(part.tokens.size());
        }
        const at::Tensor loss = sum / tokens;
        const at::Tensor gradient = torch::autograd::grad({loss}, {vector_}).front();
        const auto* first = gradient.const_data_ptr<float>();
        return {.loss = loss.item<double>(), .gradient = Floats(first, first + gradient.numel())};
    }

private:
    static at::Tensor tensor(const Tokens& tokens, const Rows& part) {
        return at::tensor(tokens, at::kLong).view({part.rows, part.columns});
    }

    at::Tensor get(const std::string& name) const {
        for (const Parameter& parameter : geometry_.parameters) {
            if (parameter.name == name) {
                return vector_
                    .narrow(0, static_cast<std::int64_t>(parameter.offset),
                            static_cast<std::int64_t>(parameter.elems))
                    .view(parameter.shape);
            }
        }
        throw Error("no parameter " + name);
    }

    at::Tensor norm(const at::Tensor& x, const std::string& name) const {
        const at::Tensor centred = x - x.mean(-1, true);
        const at::Tensor variance = (centred * centred).mean(-1, true);
        return centred / (variance + 1e-5).sqrt() * get(name + ".weight") + get(name + ".bias");
    }

    at::Tensor affine(const at::Tensor& x, const std::string& name) const {
        return at::matmul(x, get(name + ".weight")) + get(name + ".bias");
    }

    at::Tensor attention(const at::Tensor& x, const std::string& name) const {
        const std::int64_t width = settings_.width / settings_.heads;
        const std::int64_t columns = x.size(1);
        const at::Tensor mask = at::ones({columns, columns}, at::kBool).triu(1);
        const at::Tensor mixed = affine(x, name + ".c_attn");
        std::vector<at::Tensor> heads;
        for (std::int64_t head = 0; head < settings_.heads; ++head) {
            const at::Tensor query = mixed.narrow(2, head * width, width);
            const at::Tensor key = mixed.narrow(2, settings_.width + head * width, width);
            const at::Tensor value =
                mixed.narrow(2, (std::int64_t{2} * settings_.heads + head) * width, width);
            const at::Tensor scores =
                at::matmul(query, key.transpose(1, 2)) / std::sqrt(static_cast<double>(width));
            heads.push_back(
                at::matmul(at::softmax(scores.masked_fill(mask, -INFINITY), -1), value));
        }
        return affine(at::cat(heads, 2), name + ".c_proj");
    }

    static at::Tensor gelu(const at::Tensor& x) {
        constexpr double kScale = 0.7978845608028654;  // sqrt(2 / pi)
        return 0.5 * x * (1 + at::tanh(kScale * (x + 0.044715 * x * x * x)));
    }

    at::Tensor logits(const Rows& part) const {
        at::Tensor x =
            at::matmul(at::one_hot(tensor(part.tokens, part), settings_.vocabulary).to(at::kFloat),
                       get("wte.weight")) +
            get("wpe.weight").narrow(0, 0, part.columns);
        for (int layer = 0; layer < settings_.layers; ++layer) {
            const std::string name = text("h.", layer);
            x = x + attention(norm(x, name + ".ln_1"), name + ".attn");
            x = x + affine(gelu(affine(norm(x, name + ".ln_2"), name + ".mlp.c_fc")),
                           name + ".mlp.c_proj");
        }
        return at::matmul(norm(x, "ln_f"), get("wte.weight").t());
    }

    config::ModelSettings settings_;
    Geometry geometry_;
    at::Tensor vector_;
};

TEST(Network, EqualsTheWholeGraphInLossAndEveryGradient) {
    const config::ModelSettings settings = tiny();
    Floats values = values_for(settings);
    const std::vector<Rows> rows{draw(3, 8, 5, settings.vocabulary),
                                 draw(2, 5, 6, settings.vocabulary)};
    const Step expected = Reference(settings, values).step(rows);
    const Step step = run_step(settings, values, rows);
    EXPECT_NEAR(step.loss, expected.loss, 1e-6 * expected.loss);

    const Geometry geometry = describe(settings);
    for (const Parameter& parameter : geometry.parameters) {
        double largest = 0;
        double error = 0;
        for (std::size_t i = parameter.offset; i < parameter.offset + parameter.elems; ++i) {
            largest = std::max(largest, std::abs(static_cast<double>(expected.gradient[i])));
            error = std::max(
                error, std::abs(static_cast<double>(step.gradient[i]) - expected.gradient[i]));
        }
        EXPECT_GT(largest, 0) << parameter.name;
        EXPECT_LE(error, 1e-5 * largest) << parameter.name;
    }
}

TEST(Network, GivesTheSameGradientHoweverMicroBatchesSplitTheRows) {
    const config::ModelSettings settings = tiny();
    const Floats values = values_for(settings);
    const Rows whole = draw(6, 8, 7, settings.vocabulary);
    const Step expected = run_step(settings, values, {whole});
    for (const int rows : {1, 2, 3}) {
        std::vector<Rows> parts;
        for (std::ptrdiff_t first = 0; first < std::ptrdiff_t{6} * 8;
             first += static_cast<std::ptrdiff_t>(rows) * 8) {
            const std::ptrdiff_t last = first + static_cast<std::ptrdiff_t>(rows) * 8;
            parts.push_back(
                {.rows = rows,
                 .columns = 8,
                 .tokens = {whole.tokens.begin() + first, whole.tokens.begin() + last},
                 .targets = {whole.targets.begin() + first, whole.targets.begin() + last}});
        }
        const Step step = run_step(settings, values, parts);
        EXPECT_NEAR(step.loss, expected.loss, 1e-6 * expected.loss) << rows << " rows";
        EXPECT_LE(distance(step.gradient, expected.gradient), 1e-5 * norm_of(expected.gradient));
    }
}

class NetworkIn : public testing::TestWithParam<config::ModelSettings> {
protected:
    config::ModelSettings settings_ = GetParam();
    Floats values_ = values_for(settings_);
    std::vector<Rows> rows_{draw(4, 8, 5, settings_.vocabulary),
                            draw(3, 8, 6, settings_.vocabulary)};
};

TEST_P(NetworkIn, RepeatsBitForBit) {
    const Step once = run_step(settings_, values_, rows_);
    const std::vector<std::byte> bytes = encode(values_, settings_.dtype);
    const auto network = Network::make(settings_, bytes);
    for (int repeat = 0; repeat < 3; ++repeat) {
        const Step again = run_step(*network, rows_);
        EXPECT_EQ(again.loss, once.loss);
        EXPECT_EQ(again.gradient, once.gradient);
    }
}

TEST_P(NetworkIn, ScalesGradientsExactlyByAPowerOfTwo) {
    constexpr float kScale = 1024;
    const Step plain = run_step(settings_, values_, rows_);
    const Step scaled = run_step(settings_, values_, rows_, kScale);
    EXPECT_EQ(scaled.loss, plain.loss);
    Floats expected = plain.gradient;
    for (float& value : expected) {
        value *= kScale;
    }
    EXPECT_EQ(scaled.gradient, expected);
}

TEST_P(NetworkIn, EvaluatesToTheLoss) {
    const std::vector<std::byte> bytes = encode(values_, settings_.dtype);
    const auto network = Network::make(settings_, bytes);
    double sum = 0;
    for (const Rows& part : rows_) {
        sum += network->evaluate(part.view());
    }
    EXPECT_DOUBLE_EQ(sum / (7 * 8), run_step(*network, rows_).loss);
}

TEST_P(NetworkIn, IsCloseToFp32) {
    // The same parameter values, so that only the products' format differs.
    const std::vector<std::byte> bytes = encode(values_, settings_.dtype);
    Floats rounded(values_.size());
    convert_to_fp32(settings_.dtype, bytes.data(), rounded.data(), rounded.size());
    const Step expected = run_step(tiny(), rounded, rows_);
    const Step step = run_step(settings_, values_, rows_);
    if (settings_.compute == "fp32") {
        EXPECT_EQ(step.gradient, expected.gradient) << "the parameters are converted, not rounded";
    }
    EXPECT_NEAR(step.loss, expected.loss, 5e-3 * expected.loss);
    EXPECT_LE(distance(step.gradient, expected.gradient), 0.03 * norm_of(expected.gradient));
}

INSTANTIATE_TEST_SUITE_P(Formats, NetworkIn,
                         testing::Values(tiny(), tiny(Dtype::bf16, "bf16"),
                                         tiny(Dtype::bf16, "fp32"), tiny(Dtype::fp32, "bf16"),
                                         tiny(Dtype::fp16, "fp32")),
                         [](const auto& format) {
                             return text(name_of(format.param.dtype), "_computed_in_",
                                         format.param.compute);
                         });

TEST(Network, ReadsParametersInPlaceAndCopiesTokens) {
    const config::ModelSettings settings = tiny();
    std::vector<std::byte> bytes = encode(values_for(settings), settings.dtype);
    const auto network = Network::make(settings, bytes);
    Rows rows = draw(2, 8, 5, settings.vocabulary);
    const double before = run_step(*network, {rows}).loss;

    const MicroBatch batch = rows.view();
    network->begin({&batch, 1}, 1.0 / 16, 1);
    std::fill(rows.tokens.begin(), rows.tokens.end(), 0);
    for (int block = 0; block < 4; ++block) {
        network->forward(block);
    }
    EXPECT_EQ(network->loss(), before);

    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    EXPECT_NEAR(run_step(*network, {rows}).loss, std::log(23.0), 1e-6);
}

TEST(Network, AsksTorchForTheSameBitsOnAGpu) {
    const config::ModelSettings settings = tiny(Dtype::bf16, "bf16");
    const Floats values = values_for(settings);
    const std::vector<Rows> rows{draw(2, 8, 5, settings.vocabulary)};
    const Step before = run_step(settings, values, rows);
    repeat_bit_for_bit({.gpu = 0});
    EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
    // A warning alone would leave attention's backward as it is.
    EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
    EXPECT_NE(std::getenv("CUBLAS_WORKSPACE_CONFIG"), nullptr);
    // Of what the model is made of, nothing is refused, and on the CPU nothing changes.
    const Step step = run_step(settings, values, rows);
    EXPECT_EQ(step.loss, before.loss);
    EXPECT_EQ(step.gradient, before.gradient);
    at::globalContext().setDeterministicAlgorithms(false, false);
}

// Of a network that brings its blocks to slots, as on a GPU.
class NetworkWith : public testing::TestWithParam<Residence> {
protected:
    void SetUp() override {
        settings_.layers = 5;
        values_ = values_for(settings_);
        bytes_ = encode(values_, settings_.dtype);
        network_ = Network::make(settings_, bytes_, {}, GetParam());
    }

    config::ModelSettings settings_ = tiny(Dtype::bf16, "fp32");
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
    std::vector<Visit> reads(blocks);
    for (std::size_t block = 0; block < blocks; ++block) {
        reads[block] = {static_cast<int>(block)};
    }
    reads.back().push_back(0);
    const int slots =
        GetParam().slots == 0 ? 0 : std::min(GetParam().slots, static_cast<int>(blocks));
    if (slots > 0) {
        for (const Fetch& fetch :
             order_fetches(visits_of_step(reads), static_cast<int>(blocks), slots)) {
            const Block& range = geometry.blocks[static_cast<std::size_t>(fetch.block)];
            fetched += (range.end - range.begin) * 2;
        }
    }
    run_step(*network_, rows_);
    EXPECT_EQ(network_->traffic().parameter_bytes, fetched);
    const std::size_t inputs = (3 * 8 + 2 * 5 + 8) * 16 * sizeof(float);
    const std::size_t held = blocks - 2;  // neither the tokens nor the last block's
    EXPECT_LE(network_->traffic().input_bytes, 2 * held * (inputs + 3 * 512));
    EXPECT_EQ(network_->traffic().input_bytes > 0, GetParam().are_inputs_on_host);
}

INSTANTIATE_TEST_SUITE_P(Residence, NetworkWith,
                         testing::Values(Residence{}, Residence{.slots = 2}, Residence{.slots = 3},
                                         Residence{.slots = 6}, Residence{.slots = 99},
                                         Residence{.are_inputs_on_host = true},
                                         Residence{.slots = 2, .are_inputs_on_host = true}),
                         [](const auto& residence) {
                             return text(residence.param.slots, "_slots_inputs_",
                                         residence.param.are_inputs_on_host ? "on_host" : "here");
                         });

TEST(Network, GivesZeroWithoutRows) {
    const config::ModelSettings settings = tiny();
    const Step step = run_step(settings, values_for(settings), {});
    EXPECT_EQ(step.loss, 0);
    EXPECT_THAT(step.gradient, testing::Each(0.0F));
}

TEST(Network, RefusesBlocksOutOfOrderAndTokensOutsideTheVocabulary) {
    const config::ModelSettings settings = tiny();
    const std::vector<std::byte> bytes = encode(values_for(settings), settings.dtype);
    const auto network = Network::make(settings, bytes);
    Rows rows = draw(2, 8, 5, settings.vocabulary);
    const MicroBatch batch = rows.view();
    Floats gradient(describe(settings).elems);
    network->begin({&batch, 1}, 1, 1);
    EXPECT_THROW(network->forward(1), ContractError);
    network->forward(0);
    EXPECT_THROW(network->backward(3, gradient), ContractError);
    EXPECT_THROW(network->loss(), ContractError);

    rows.tokens[3] = 23;
    EXPECT_THROW(network->begin({&batch, 1}, 1, 1), Error);
    EXPECT_THROW(Network::make(settings, std::span(bytes).first(bytes.size() - 1)), ContractError);
}

// Adam's update, plainly.
struct Adam {
    Floats moment;
    Floats variance;

    void update(Floats& values, const Floats& gradient, int t, float learning_rate) {
        const float rate = learning_rate / (1 - std::pow(0.9F, static_cast<float>(t)));
        const float spread = 1 - std::pow(0.95F, static_cast<float>(t));
        for (std::size_t i = 0; i < values.size(); ++i) {
            moment[i] = 0.9F * moment[i] + 0.1F * gradient[i];
            variance[i] = 0.95F * variance[i] + 0.05F * gradient[i] * gradient[i];
            values[i] -= rate * moment[i] / (std::sqrt(variance[i] / spread) + 1e-8F);
        }
    }
};

TEST(Network, LearnsASentenceAndThenContinuesIt) {
    const std::string sentence = "a stitch in time. ";
    config::ModelSettings settings = tiny(Dtype::bf16, "bf16");
    settings.vocabulary = 128;
    settings.width = 32;
    settings.context = 24;
    const Geometry geometry = describe(settings);
    Floats values(geometry.elems);
    fill_start_values(geometry, 1, 0, values);
    std::vector<std::byte> bytes = encode(values, settings.dtype);
    const auto network = Network::make(settings, bytes);

    Adam adam{.moment = Floats(values.size()), .variance = Floats(values.size())};
    constexpr int kSteps = 250;
    std::vector<double> losses;
    for (int t = 1; t <= kSteps; ++t) {
        Rows rows{.rows = 4, .columns = 24};
        for (std::size_t i = 0; i < 4; ++i) {
            const std::size_t start = static_cast<std::size_t>(t) * 7 + i * 5;
            for (std::size_t j = start; j < start + 24; ++j) {
                rows.tokens.push_back(sentence[j % sentence.size()]);
                rows.targets.push_back(sentence[(j + 1) % sentence.size()]);
            }
        }
        const Step step = run_step(*network, {rows});
        losses.push_back(step.loss);
        adam.update(values, step.gradient, t, 0.01F * static_cast<float>(kSteps - t) / kSteps);
        convert_from_fp32(values.data(), settings.dtype, bytes.data(), values.size());
    }
    EXPECT_NEAR(losses.front(), std::log(128.0), 0.1);
    EXPECT_LT(losses.back(), 0.4) << "only the first letters of a row leave a doubt";

    // Which of two spellings follows a doubtful letter is chance; that each letter has its
    // neighbour in the sentence is not.
    const Tokens prompt(sentence.begin(), sentence.begin() + 12);
    const Tokens drawn = network->sample(prompt, 30, 0.1, 3);
    ASSERT_EQ(drawn.size(), 30U);
    int learned = 0;
    std::string pair{static_cast<char>(prompt.back()), ' '};
    for (const std::int32_t letter : drawn) {
        pair[1] = static_cast<char>(letter);
        learned += (sentence + sentence).find(pair) != std::string::npos ? 1 : 0;
        pair[0] = pair[1];
    }
    EXPECT_GE(learned, 27) << std::string(drawn.begin(), drawn.end());
}

TEST(Sampling, IsReproducibleBySeedAndFollowsTheShares) {
    const config::ModelSettings settings = tiny();
    // All weights 0: every token is as likely as any other.
    const std::vector<std::byte> bytes(describe(settings).elems * 4);
    const auto network = Network::make(settings, bytes);
    const Tokens prompt{1, 2, 3};
    const Tokens drawn = network->sample(prompt, 400, 1, 9);
    EXPECT_EQ(network->sample(prompt, 400, 1, 9), drawn);
    EXPECT_NE(network->sample(prompt, 400, 1, 10), drawn);
    std::vector<int> counts(23);
    for (const std::int32_t token : drawn) {
        ++counts.at(static_cast<std::size_t>(token));
    }
    EXPECT_THAT(counts, testing::Each(testing::AllOf(testing::Ge(4), testing::Le(40))));
    EXPECT_THROW(network->sample({}, 1, 1, 1), ConfigError);
    EXPECT_THROW(network->sample(prompt, 1, 0, 1), ContractError);
}

}  // namespace
}  // namespace nearstep::model
