// Reads sizes from the config.json of models that the networks here do not compute. Called by the
// command suggest.
#include "model/published_shape.hpp"

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "config/toml_text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <initializer_list>

namespace nearstep::model {

namespace {

using nlohmann::json;

constexpr int kMostSize = 1 << 24;
constexpr int kMostLayers = 4096;
constexpr int kMostWidth = 1 << 20;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
    throw ConfigError(
        text("The model's ", config::on_one_line(path), " ", why,
             ": give a folder of Hugging Face, or a count of parameters, as in 7e9."));
}

// The first of the names that the file has; 0 if none may be missing, else refuses.
enum class Need { must, may };
int size_in(const json& file, const std::string& path, std::initializer_list<const char*> names,
            Need need) {
    for (const char* name : names) {
        const auto found = file.find(name);
        if (found == file.end() || found->is_null()) {
            continue;
        }
        const double size = found->is_number_integer() ? found->get<double>() : 0;
        if (size < 1 || size > kMostSize) {
            refuse(path, text("has no size in ", name));
        }
        return static_cast<int>(size);
    }
    if (need == Need::must) {
        refuse(path, text("has no ", *names.begin()));
    }
    return 0;
}

}  // namespace

config::ModelSettings read_shape(const std::string& path, std::string_view content) {
    json file = is_nested_too_deeply(content) ? json() : json::parse(content, nullptr, false);
    if (!file.is_object()) {
        refuse(path, "is no JSON object");
    }
    if (const auto of_text = file.find("text_config");
        of_text != file.end() && of_text->is_object()) {
        file = json(*of_text);  // of a model that reads images, too
    }
    if (size_in(file, path, {"num_local_experts", "num_experts", "n_routed_experts"}, Need::may) >
        1) {
        refuse(path, "has experts, of which a token uses some, and that is not modelled");
    }
    config::ModelSettings shape;
    const bool is_gated = file.contains("rms_norm_eps") || file.contains("num_key_value_heads");
    shape.architecture = is_gated ? config::ModelFamily::llama : config::ModelFamily::gpt;
    shape.layers = size_in(file, path, {"num_hidden_layers", "n_layer", "num_layers"}, Need::must);
    shape.width = size_in(file, path, {"hidden_size", "n_embd", "d_model"}, Need::must);
    shape.heads = size_in(file, path, {"num_attention_heads", "n_head", "num_heads"}, Need::must);
    shape.kv_heads = size_in(file, path, {"num_key_value_heads"}, Need::may);
    shape.hidden = size_in(file, path, {"intermediate_size", "n_inner", "ffn_dim"}, Need::may);
    shape.vocabulary = size_in(file, path, {"vocab_size"}, Need::must);
    shape.positions =
        size_in(file, path, {"max_position_embeddings", "n_positions", "n_ctx"}, Need::may);
    if (shape.layers > kMostLayers || std::max(shape.width, shape.hidden) > kMostWidth) {
        refuse(path, "has more layers, or wider ones, than any model");
    }
    const auto tied = file.find("tie_word_embeddings");
    shape.tied = tied != file.end() && tied->is_boolean() ? tied->get<bool>() : !is_gated;
    const bool has_usual_heads =
        shape.width % shape.heads == 0 && shape.heads % shape.key_heads() == 0;
    if (!has_usual_heads) {  // their number matters little here
        shape.heads = shape.kv_heads = 1;
    }
    return shape;
}

}  // namespace nearstep::model
