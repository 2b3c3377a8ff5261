// Tests the frequencies of rotary positions.
#include "model/rope.hpp"

#include "support/test.hpp"

namespace nearstep::model {
namespace {

config::ModelSettings scaled(const std::string& scaling, int positions, double theta = 10000) {
    config::ModelSettings settings{
        .architecture = config::ModelFamily::llama, .heads = 4, .width = 32};
    settings.positions = positions;
    settings.rope_theta = theta;
    settings.rope_scaling = scaling;
    return settings;
}

struct Case {
    std::string name;
    config::ModelSettings settings;
    int columns;
    std::vector<float> frequencies;
    double factor;
};

constexpr const char* kYarn =
    R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048)";

// Values that LlamaRotaryEmbedding of transformers 5.23 computes for the same settings.
std::vector<Case> cases() {
    const std::string llama3 =
        R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": )";
    const std::string dynamic = R"({"rope_type": "dynamic", "factor": 2.0})";
    const std::vector<float> plain = {1, 0.1F, 0.01F, 0.001F};
    return {
        {"none", scaled("", 64), 8, plain, 1},
        {"default", scaled(R"({"rope_type": "default"})", 64), 8, plain, 1},
        {"theta",
         scaled("", 64, 500000),
         8,
         {1, 0.0376060307F, 0.00141421345F, 5.31829573e-05F},
         1},
        {"linear",
         scaled(R"({"type": "linear", "factor": 4.0})", 64),
         8,
         {0.25F, 0.025F, 0.0025F, 0.00025F},
         1},
        {"dynamic within", scaled(dynamic, 64), 64, plain, 1},
        {"dynamic beyond",
         scaled(dynamic, 64),
         256,
         {1, 0.0522757955F, 0.00273275888F, 0.000142857141F},
         1},
        {"llama3",
         scaled(llama3 + "8192}", 131072, 500000),
         8,
         {1, 0.0376060307F, 0.000524846022F, 6.64786967e-06F},
         1},
        {"llama3, short",
         scaled(llama3 + "128}", 131072, 500),
         8,
         {1, 0.21147424F, 0.00559017016F, 0.00118217699F},
         1},
        {"yarn",
         scaled(std::string(kYarn) + "}", 131072),
         8,
         {1, 0.1F, 0.00624999963F, 0.00025F},
         1.138629436111989},
        {"yarn, all keys",
         scaled(std::string(kYarn) + R"(, "truncate": false, "beta_fast": 16, "beta_slow": 2,
                "mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": null})",
                131072),
         8,
         {1, 0.1F, 0.00426161895F, 0.00025F},
         1.0648216253695715},
        {"yarn, given factor",
         scaled(std::string(kYarn) + R"(, "attention_factor": 1.25})", 131072),
         8,
         {1, 0.1F, 0.00624999963F, 0.00025F},
         1.25},
    };
}

TEST(Rope, HasTheFrequenciesOfTransformers) {
    for (const Case& one : cases()) {
        SCOPED_TRACE(one.name);
        const Rope rope = rope_of(one.settings, one.columns);
        ASSERT_EQ(rope.frequencies.size(), one.frequencies.size());
        for (std::size_t i = 0; i < rope.frequencies.size(); ++i) {
            EXPECT_NEAR(rope.frequencies[i], one.frequencies[i], 1e-6 * one.frequencies[i]) << i;
        }
        EXPECT_DOUBLE_EQ(rope.factor, one.factor);
    }
}

std::string refusal(const std::string& scaling) {
    return message_of([&] { rope_of(scaled(scaling, 64), 8); });
}

TEST(Rope, RefusesWhatItDoesNotKnowInOneSentence) {
    EXPECT_EQ(refusal("yarn"),
              "model.rope_scaling is \"yarn\", which is no JSON object: write it as in a published "
              "config.json, or leave it empty.");
    EXPECT_THAT(refusal(R"({"rope_type": "longrope", "factor": 2})"),
                states("rope_type", "longrope", "linear"));
    EXPECT_THAT(refusal(R"({"rope_type": 3})"), states("rope_type"));
    EXPECT_THAT(refusal(R"({"rope_type": "linear"})"), states("linear", "factor", 1));
    EXPECT_THAT(refusal(R"({"rope_type": "dynamic", "factor": 0.5})"), states("dynamic", "factor"));
    EXPECT_THAT(refusal(R"({"rope_type": "linear", "factor": 2, "mrope_section": [1]})"),
                states("mrope_section"));
    EXPECT_THAT(refusal(R"({"rope_type": "llama3", "factor": 2, "low_freq_factor": 4,
                            "high_freq_factor": 4})"),
                states("high_freq_factor", "low_freq_factor"));
    EXPECT_THAT(refusal(std::string(kYarn) + R"(, "truncate": 1})"), states("truncate"));
}

}  // namespace
}  // namespace nearstep::model
