#include "model/network.hpp"

#include "base/error.hpp"
#include "model/network_steps.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstdlib>

namespace nearstep::model {
namespace {

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

// GPT-2 as one autograd graph over one leaf tensor, built from elementary operations.
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
    // Both use the same parameter values, so only the format of the products differs.
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
