// Compares a GPT that goes block by block with its whole graph, and its micro-batches.
#include "model/network.hpp"

#include "model/network_reference.hpp"
#include "model/network_steps.hpp"
#include "support/test.hpp"

#include <ATen/ATen.h>

namespace nearstep::model {
namespace {

class GptReference final : public Reference {
public:
    using Reference::Reference;

private:
    at::Tensor norm(const at::Tensor& x, const std::string& name) const {
        const at::Tensor centred = x - x.mean(-1, true);
        const at::Tensor variance = (centred * centred).mean(-1, true);
        return centred / (variance + settings().norm_epsilon).sqrt() * get(name + ".weight") +
               get(name + ".bias");
    }

    at::Tensor affine(const at::Tensor& x, const std::string& name) const {
        return at::matmul(x, get(name + ".weight")) + get(name + ".bias");
    }

    at::Tensor attention(const at::Tensor& x, const std::string& name) const {
        const std::int64_t width = settings().width / settings().heads;
        const std::int64_t columns = x.size(1);
        const at::Tensor mask = at::ones({columns, columns}, at::kBool).triu(1);
        const at::Tensor mixed = affine(x, name + ".c_attn");
        std::vector<at::Tensor> heads;
        for (std::int64_t head = 0; head < settings().heads; ++head) {
            const at::Tensor query = mixed.narrow(2, head * width, width);
            const at::Tensor key = mixed.narrow(2, settings().width + head * width, width);
            const at::Tensor value =
                mixed.narrow(2, (std::int64_t{2} * settings().heads + head) * width, width);
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

    at::Tensor logits(const Rows& part) const override {
        at::Tensor x =
            at::matmul(at::one_hot(tensor(part.tokens, part), settings().vocabulary).to(at::kFloat),
                       get("wte.weight")) +
            get("wpe.weight").narrow(0, 0, part.columns);
        for (int layer = 0; layer < settings().layers; ++layer) {
            const std::string name = text("h.", layer);
            x = x + attention(norm(x, name + ".ln_1"), name + ".attn");
            x = x + affine(gelu(affine(norm(x, name + ".ln_2"), name + ".mlp.c_fc")),
                           name + ".mlp.c_proj");
        }
        return at::matmul(norm(x, "ln_f"),
                          get(settings().tied ? "wte.weight" : "lm_head.weight").t());
    }
};

TEST(Network, EqualsTheWholeGraphInLossAndEveryGradient) {
    expect_whole_graph<GptReference>(tiny());
    config::ModelSettings settings = tiny();
    settings.tied = false;
    settings.hidden = 24;
    settings.positions = 11;
    settings.norm_epsilon = 1e-3;
    expect_whole_graph<GptReference>(settings);
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
    // Both use the same parameter values, so only the format of the products differs.
    const std::vector<std::byte> bytes = encode(values_, settings_.dtype);
    Floats rounded(values_.size());
    convert_to_fp32(settings_.dtype, bytes.data(), rounded.data(), rounded.size());
    config::ModelSettings in_fp32 = settings_;
    in_fp32.dtype = Dtype::fp32;
    in_fp32.compute = config::ProductFormat::fp32;
    const Step expected = run_step(in_fp32, rounded, rows_);
    const Step step = run_step(settings_, values_, rows_);
    if (settings_.compute == config::ProductFormat::fp32) {
        EXPECT_EQ(step.gradient, expected.gradient) << "the parameters are converted, not rounded";
    }
    EXPECT_NEAR(step.loss, expected.loss, 5e-3 * expected.loss);
    EXPECT_LE(distance(step.gradient, expected.gradient), 0.03 * norm_of(expected.gradient));
}

INSTANTIATE_TEST_SUITE_P(Formats, NetworkIn,
                         testing::Values(tiny(), tiny(Dtype::bf16, config::ProductFormat::bf16),
                                         tiny(Dtype::bf16, config::ProductFormat::fp32),
                                         tiny(Dtype::fp32, config::ProductFormat::bf16),
                                         tiny(Dtype::fp16, config::ProductFormat::fp32),
                                         tiny_llama(),
                                         tiny_llama(Dtype::bf16, config::ProductFormat::bf16)));

TEST_P(NetworkIn, ComputesTheLastBlockInPieces) {
    const std::vector<std::byte> bytes = encode(values_, settings_.dtype);
    const Step whole = run_step(settings_, values_, rows_);
    // 5 tokens at a time of 32 and 24, then 1.
    for (const std::int64_t most : {std::int64_t{5} * settings_.vocabulary, std::int64_t{1}}) {
        const auto network = Network::make(settings_, bytes, {}, {.most_logits = most});
        const Step step = run_step(*network, rows_);
        EXPECT_NEAR(step.loss, whole.loss, 1e-6 * whole.loss);
        EXPECT_LE(distance(step.gradient, whole.gradient), 0.01 * norm_of(whole.gradient));
        EXPECT_NEAR(network->evaluate(rows_[0].view()),
                    Network::make(settings_, bytes)->evaluate(rows_[0].view()), 1e-4);
    }
}

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
    const config::ModelSettings settings = tiny(Dtype::bf16, config::ProductFormat::bf16);
    const Floats values = values_for(settings);
    const std::vector<Rows> rows{draw(2, 8, 5, settings.vocabulary)};
    const Step before = run_step(settings, values, rows);
    repeat_bit_for_bit({.gpu = 0});
    EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
    // With warnings only, attention's backward would not be deterministic.
    EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
    EXPECT_NE(std::getenv("CUBLAS_WORKSPACE_CONFIG"), nullptr);
    // The model's operations are all allowed, and on the CPU the results do not change.
    const Step step = run_step(settings, values, rows);
    EXPECT_EQ(step.loss, before.loss);
    EXPECT_EQ(step.gradient, before.gradient);
    at::globalContext().setDeterministicAlgorithms(false, false);
}
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

}  // namespace
}  // namespace nearstep::model
