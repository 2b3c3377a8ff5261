// Tests that a network learns a sentence, and sampling.
#include "model/network.hpp"
#include "model/network_steps.hpp"
#include "support/test.hpp"

namespace nearstep::model {
namespace {

// A simple Adam.
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
    config::ModelSettings settings = tiny(Dtype::bf16, config::ProductFormat::bf16);
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

    // After an ambiguous letter the continuation is random, but nearly all pairs of letters must
    // occur in the sentence.
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
    // With all weights 0 every token is equally likely.
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
