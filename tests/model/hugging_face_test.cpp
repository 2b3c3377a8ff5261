// Tests the reading and writing of a published model's config.json.
#include "model/hugging_face.hpp"

#include "config/load.hpp"
#include "model/geometry.hpp"
#include "support/test.hpp"

#include <nlohmann/json.hpp>

namespace nearstep::model {
namespace {

using Json = nlohmann::json;

// Llama 3.1 8B's, as published.
Json llama() {
    return {{"model_type", "llama"},
            {"attention_bias", false},
            {"hidden_act", "silu"},
            {"hidden_size", 4096},
            {"intermediate_size", 14336},
            {"max_position_embeddings", 131072},
            {"mlp_bias", false},
            {"num_attention_heads", 32},
            {"num_hidden_layers", 32},
            {"num_key_value_heads", 8},
            {"rms_norm_eps", 1e-05},
            {"rope_scaling",
             {{"factor", 8.0},
              {"low_freq_factor", 1.0},
              {"high_freq_factor", 4.0},
              {"original_max_position_embeddings", 8192},
              {"rope_type", "llama3"}}},
            {"rope_theta", 500000.0},
            {"tie_word_embeddings", false},
            {"vocab_size", 128256}};
}

Json qwen2() {
    return {{"model_type", "qwen2"},       {"hidden_size", 896},
            {"intermediate_size", 4864},   {"max_position_embeddings", 32768},
            {"num_attention_heads", 14},   {"num_hidden_layers", 24},
            {"num_key_value_heads", 2},    {"rms_norm_eps", 1e-06},
            {"rope_theta", 1000000.0},     {"sliding_window", 32768},
            {"tie_word_embeddings", true}, {"use_sliding_window", false},
            {"vocab_size", 151936}};
}

Json gpt2() {
    return {{"model_type", "gpt2"}, {"activation_function", "gelu_new"},
            {"n_ctx", 1024},        {"n_embd", 768},
            {"n_head", 12},         {"n_layer", 12},
            {"n_positions", 1024},  {"vocab_size", 50257},
            {"n_inner", nullptr},   {"layer_norm_epsilon", 1e-05}};
}

config::Sources sources_of(const Json& json, std::vector<std::string> overrides = {}) {
    return {.config_path = "some.toml",
            .overrides = std::move(overrides),
            .model = read_hugging_face_config("m/config.json", json.dump()),
            .needs_data = false};
}

config::ModelSettings settings_of(const Json& json, std::vector<std::string> overrides = {}) {
    return config::parse(sources_of(json, std::move(overrides))).model;
}

std::string refusal(const Json& json, std::vector<std::string> overrides = {}) {
    return message_of([&] { settings_of(json, std::move(overrides)); });
}

TEST(HuggingFaceConfig, GivesTheSettingsOfPublishedModels) {
    const config::ModelSettings ours = settings_of(llama(), {"model.context=4096"});
    EXPECT_EQ(ours.architecture, config::ModelFamily::llama);
    EXPECT_EQ(ours.layers, 32);
    EXPECT_EQ(ours.heads, 32);
    EXPECT_EQ(ours.kv_heads, 8);
    EXPECT_EQ(ours.width, 4096);
    EXPECT_EQ(ours.hidden, 14336);
    EXPECT_EQ(ours.context, 4096) << "a sequence may be shorter";
    EXPECT_EQ(ours.positions, 131072);
    EXPECT_EQ(ours.vocabulary, 128256);
    EXPECT_EQ(ours.rope_theta, 500000);
    EXPECT_THAT(ours.rope_scaling, HasSubstr("\"rope_type\":\"llama3\""));
    EXPECT_FALSE(ours.tied);
    EXPECT_FALSE(ours.qkv_bias);

    const config::ModelSettings qwen = settings_of(qwen2());
    EXPECT_TRUE(qwen.qkv_bias);
    EXPECT_TRUE(qwen.tied);
    EXPECT_EQ(qwen.norm_epsilon, 1e-6);
    EXPECT_EQ(qwen.context, 32768);
    EXPECT_EQ(qwen.rope_scaling, "");

    const config::ModelSettings gpt = settings_of(gpt2(), {"model.layers=12"});
    EXPECT_EQ(gpt.architecture, config::ModelFamily::gpt);
    EXPECT_EQ(gpt.context, 1024);
    EXPECT_EQ(gpt.hidden_width(), 3072);
    EXPECT_TRUE(gpt.tied);
}

TEST(HuggingFaceConfig, ReadsRotaryPositionsOfOldAndNewFiles) {
    Json json = llama();
    json.erase("rope_scaling");
    json.erase("rope_theta");
    EXPECT_EQ(settings_of(json).rope_theta, 10000);
    json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 20000}};
    EXPECT_EQ(settings_of(json).rope_theta, 20000);
    EXPECT_EQ(settings_of(json).rope_scaling, "");
    json["rope_parameters"] = {{"rope_type", "linear"}, {"rope_theta", 30000}, {"factor", 2}};
    EXPECT_EQ(settings_of(json).rope_theta, 30000);
    EXPECT_EQ(settings_of(json).rope_scaling, R"({"factor":2,"rope_type":"linear"})");
    json["rope_parameters"] = nullptr;
    json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 4.0}};
    EXPECT_EQ(settings_of(json).rope_scaling, R"({"factor":4.0,"type":"dynamic"})");
}

TEST(HuggingFaceConfig, IsWrittenAsItWasRead) {
    for (const Json& json : {llama(), qwen2(), gpt2()}) {
        const config::ModelSettings settings = settings_of(json);
        const Json written = Json::parse(hugging_face_config(settings, Dtype::bf16));
        for (const auto& [key, value] : json.items()) {
            if (!value.is_null() && key != "n_ctx" && key != "sliding_window") {
                EXPECT_EQ(written.value(key, Json()), value) << key;
            }
        }
        EXPECT_EQ(written["torch_dtype"], "bfloat16");
    }
}

TEST(HuggingFaceConfig, KeepsTheTokenIds) {
    Json json = llama();
    json["bos_token_id"] = 7;
    json["eos_token_id"] = {9, 10};
    json["pad_token_id"] = nullptr;
    const config::RunSettings run = config::parse(sources_of(json));
    // A checkpoint keeps its settings as text.
    const config::ModelSettings again = config::stored_model("x", config::print(run));
    const Json written = Json::parse(hugging_face_config(again, Dtype::fp32));
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
        EXPECT_EQ(written.at(key), json.at(key)) << key;
    }
    EXPECT_FALSE(written.contains("sep_token_id"));
    // Keys that the published file leaves to transformers stay away; an own model has none of them.
    EXPECT_FALSE(Json::parse(hugging_face_config(settings_of(llama()), Dtype::fp32))
                     .contains("bos_token_id"));
    EXPECT_TRUE(Json::parse(hugging_face_config({}, Dtype::fp32)).at("eos_token_id").is_null());
    json["eos_token_id"] = "</s>";
    EXPECT_THAT(refusal(json), HasSubstr("eos_token_id"));
}

TEST(HuggingFaceConfig, KeepsTheGenerationConfig) {
    const Json generation = {{"eos_token_id", {1, 2}}, {"temperature", 0.6}};
    config::Sources sources = sources_of(gpt2());
    for (const config::TomlEntry& entry :
         read_generation_config("m/generation_config.json", generation.dump(2))) {
        sources.model.push_back(entry);
    }
    const config::RunSettings run = config::parse(sources);
    const config::ModelSettings again = config::stored_model("x", config::print(run));
    EXPECT_EQ(Json::parse(generation_config(again)), generation);
    EXPECT_EQ(generation_config({}), "");
    EXPECT_THROW(read_generation_config("m/generation_config.json", "[]"), ConfigError);
}

TEST(HuggingFaceConfig, RefusesExportSettingsThatAreNoJsonBeforeTraining) {
    for (const auto& [ids, generation] :
         {std::pair("{", ""), std::pair("[7]", ""), std::pair(R"({"layers":3})", ""),
          std::pair(R"({"eos_token_id":"x"})", ""), std::pair("", "7")}) {
        config::ModelSettings settings;
        settings.token_ids = ids;
        settings.generation_config = generation;
        EXPECT_THROW(describe(settings), ConfigError) << ids << generation;
    }
}

TEST(HuggingFaceConfig, RefusesAConflictWithTheConfig) {
    EXPECT_EQ(refusal(llama(), {"model.layers=3"}),
              "model.layers = 3 (--set model.layers=3), but m/config.json says 32: leave the key "
              "out, or name another model in model.from.");
    EXPECT_THAT(refusal(llama(), {"model.architecture=gpt"}),
                HasSubstr("m/config.json says \"llama\""));
    EXPECT_THAT(refusal(gpt2(), {"model.context=2048"}),
                states("model.positions", 1024, "m/config.json"));
    EXPECT_NO_THROW(settings_of(llama(), {"model.rope_theta=500000"}));
}

TEST(HuggingFaceConfig, RefusesWhatTheNetworksDoNotHave) {
    const auto with = [](Json json, const char* key, const Json& value) {
        json[key] = value;
        return refusal(json);
    };
    EXPECT_THAT(with(llama(), "model_type", "mamba"), states("model_type", "mamba", "gpt2"));
    EXPECT_THAT(with(llama(), "attention_bias", true), HasSubstr("attention_bias = true"));
    EXPECT_THAT(with(llama(), "mlp_bias", true), HasSubstr("mlp_bias = true"));
    EXPECT_THAT(with(llama(), "hidden_act", "gelu"), HasSubstr("hidden_act = \"gelu\""));
    EXPECT_THAT(with(llama(), "head_dim", 64), states("head_dim", 64, 128));
    EXPECT_THAT(with(llama(), "num_key_value_heads", 5), HasSubstr("model.kv_heads = 5"));
    EXPECT_THAT(with(llama(), "num_attention_heads", 0), HasSubstr("too small"));
    EXPECT_THAT(with(llama(), "num_hidden_layers", 99999), states("model.layers", 99999));
    EXPECT_THAT(with(llama(), "hidden_size", "4096"), states("hidden_size"));
    EXPECT_THAT(with(llama(), "vocab_size", nullptr), states("vocab_size"));
    EXPECT_THAT(with(llama(), "quantization_config", {{"bits", 4}}), HasSubstr("quantised"));
    EXPECT_THAT(with(llama(), "rope_scaling", "linear"), HasSubstr("no JSON object"));
    EXPECT_THAT(with(qwen2(), "use_sliding_window", true), HasSubstr("use_sliding_window = true"));
    EXPECT_THAT(with(gpt2(), "activation_function", "relu"), HasSubstr("activation_function"));
    EXPECT_THAT(with(gpt2(), "scale_attn_by_inverse_layer_idx", true),
                HasSubstr("scale_attn_by_inverse_layer_idx"));
    EXPECT_THAT(refusal(Json::array()), HasSubstr("m/config.json is no JSON object"));
}

}  // namespace
}  // namespace nearstep::model
