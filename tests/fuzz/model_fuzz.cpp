// Any bytes as the config.json of a published model: accepted settings are exported as they were
// read.
#include "base/error.hpp"
#include "config/load.hpp"
#include "fuzz.hpp"
#include "model/hugging_face.hpp"
#include "model/published_shape.hpp"
#include "model/rope.hpp"

#include <algorithm>
#include <cmath>

namespace nearstep::fuzz {

namespace {

config::ModelSettings settings_of(std::string_view content) {
    config::Sources sources{.config_path = "some.toml"};
    sources.model = model::read_hugging_face_config("model/config.json", content);
    sources.needs_data = false;
    return config::parse(sources).model;
}

std::string printed(const config::ModelSettings& settings) {
    config::RunSettings run;
    run.model = settings;
    run.model.rope_scaling = model::rope_scaling_on_one_line(settings);
    return config::print(run);
}

}  // namespace

std::vector<std::string> seeds() {
    const std::string llama =
        R"({"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 172,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-05, "tie_word_embeddings": true,
            "rope_theta": 500000.0, "rope_scaling": )";
    return {llama + "null}",
            llama + R"({"type": "linear", "factor": 2.0}})",
            llama + R"({"rope_type": "dynamic", "factor": 2.0}})",
            llama + R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}})",
            llama + R"({"rope_type": "yarn", "factor": 4.0, "beta_fast": 32, "beta_slow": 1,
                        "truncate": false, "mscale": 1, "mscale_all_dim": 0.5}})",
            R"({"model_type": "qwen2", "vocab_size": 256, "hidden_size": 64,
                "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "max_position_embeddings": 128,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})",
            R"({"model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 64,
                "n_layer": 2, "n_head": 2, "n_inner": null, "layer_norm_epsilon": 1e-05})"};
}

void read(Bytes bytes) {
    const std::string_view content(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    try {
        const config::ModelSettings shape = model::read_shape("model/config.json", content);
        require(shape.layers > 0 && shape.width % shape.heads == 0 &&
                    shape.heads % shape.key_heads() == 0,
                "a shape is possible");
    } catch (const ConfigError&) {  // a family or a size that is refused
    }
    const config::ModelSettings settings = settings_of(content);
    const std::string json = model::hugging_face_config(settings, Dtype::bf16);
    config::ModelSettings again = settings_of(json);
    again.hidden = settings.hidden;  // the export has the resolved width
    again.context = settings.context;
    require(again.hidden_width() == settings.hidden_width() && printed(again) == printed(settings),
            "an exported config.json gives the settings that it was made from");
    if (settings.is_llama() && settings.width <= 4096) {
        const model::Rope rope = model::rope_of(settings, settings.context);
        require(std::ranges::none_of(rope.frequencies, [](float each) { return std::isnan(each); }),
                "frequencies are numbers");
    }
}

}  // namespace nearstep::fuzz
