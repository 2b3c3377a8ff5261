// Translates between our settings and config.json. Used by the commands and by exports.
#include "model/hugging_face.hpp"

#include "base/error.hpp"
#include "base/json_text.hpp"
#include "model/rope.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <utility>

namespace nearstep::model {

namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr std::string_view kTokenId = "_token_id";

std::string on_one_line(const Json& json) {
    return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

// A token, several of them (as for the end of a text), or none.
bool is_token_id(const Json& value) {
    const auto is_one = [](const Json& id) { return id.is_number_integer(); };
    return value.is_null() || is_one(value) ||
           (value.is_array() && std::ranges::all_of(value, is_one));
}

// A setting that holds JSON.
OrderedJson parse_setting(const char* key, const std::string& value) {
    OrderedJson json = OrderedJson::parse(value, nullptr, false);
    if (!json.is_object()) {
        throw ConfigError(text(key, " is ", config::written(std::string_view(value)),
                               ", which is no JSON object: write it as in a published model, or "
                               "leave it out."));
    }
    return json;
}

OrderedJson token_ids_of(const config::ModelSettings& settings) {
    if (settings.token_ids.empty()) {
        return {{"bos_token_id", nullptr}, {"eos_token_id", nullptr}};
    }
    OrderedJson ids = parse_setting("model.token_ids", settings.token_ids);
    for (const auto& [name, value] : ids.items()) {
        if (!name.ends_with(kTokenId) || !is_token_id(Json(value))) {
            throw ConfigError(text("model.token_ids gives ", config::on_one_line(name),
                                   ", which is not the ..._token_id of a token or a list of them: "
                                   "write it as in a published config.json."));
        }
    }
    return ids;
}

// A published config.json, and the keys that it sets.
class Published {
public:
    Published(const std::string& path, std::string_view content)
        : origin_(config::on_one_line(path)) {
        if (is_nested_too_deeply(content)) {
            refuse("is nested too deeply", "download it again");
        }
        json_ = Json::parse(content, nullptr, false);
        if (!json_.is_object()) {
            refuse("is no JSON object", "download it again");
        }
    }

    [[noreturn]] void refuse(const std::string& why, const std::string& advice) const {
        throw ConfigError(text("The model's ", origin_, " ", why, ": ", advice, "."));
    }

    // Null if the key is missing or null.
    const Json* find(const char* name) const {
        const auto found = json_.find(name);
        return found == json_.end() || found->is_null() ? nullptr : &*found;
    }

    std::string word(const char* name, const std::string& otherwise) const {
        return value<std::string>(name, &Json::is_string, "text", otherwise);
    }
    bool flag(const char* name, bool otherwise) const {
        return value<bool>(name, &Json::is_boolean, "true or false", otherwise);
    }
    double number(const char* name, double otherwise) const {
        return value<double>(name, &Json::is_number, "a number", otherwise);
    }
    // A whole number of at least 1.
    std::int64_t count(const char* name, std::optional<std::int64_t> otherwise = {}) const {
        const auto given =
            value<std::int64_t>(name, &Json::is_number_integer, "a whole number", otherwise);
        if (find(name) != nullptr && given < 1) {
            refuse(text("has ", name, " = ", given, ", which is too small"), "download it again");
        }
        return given;
    }

    // Refuses a model that wants something else than the only `value` that we have.
    template <typename T>
    void expect(const char* name, const T& value, const T& given) const {
        if (given != value) {
            refuse(text("has ", name, " = ", config::written(config::Scalar(given)),
                        ", and nearstep computes only ", config::written(config::Scalar(value))),
                   "name another model in model.from");
        }
    }

    void set(const char* key, config::Scalar value) {
        entries_.push_back({.key = text("model.", key),
                            .value = {.items = {std::move(value)}},
                            .origin = origin_});
    }

    // Returns the file's keys whose names end in "_token_id", such as "eos_token_id".
    Json token_ids() const {
        Json ids = Json::object();
        for (const auto& [name, value] : json_.items()) {
            if (name.ends_with(kTokenId)) {
                ids[name] = value;
            }
        }
        return ids;
    }

    const Json& all() const { return json_; }

    std::vector<config::TomlEntry> entries() && { return std::move(entries_); }

private:
    template <typename T>
    T value(const char* name, bool (Json::*is)() const noexcept, const char* kind,
            std::optional<T> otherwise) const {
        const Json* found = find(name);
        if (found == nullptr && otherwise) {
            return *std::move(otherwise);
        }
        if (found == nullptr || !(found->*is)()) {
            refuse(found == nullptr ? text("has no ", name)
                                    : text("has another value than ", kind, " for ", name),
                   "download it again");
        }
        return found->get<T>();
    }

    std::string origin_;
    Json json_;
    std::vector<config::TomlEntry> entries_;
};

void read_gpt2(Published& json) {
    const std::string activation = json.word("activation_function", "gelu_new");
    json.expect<std::string>("activation_function", "gelu_new",
                             activation == "gelu_pytorch_tanh" ? "gelu_new" : activation);
    json.expect("scale_attn_weights", true, json.flag("scale_attn_weights", true));
    json.expect("scale_attn_by_inverse_layer_idx", false,
                json.flag("scale_attn_by_inverse_layer_idx", false));
    json.expect("add_cross_attention", false, json.flag("add_cross_attention", false));
    json.set("layers", json.count("n_layer"));
    json.set("heads", json.count("n_head"));
    json.set("width", json.count("n_embd"));
    json.set("hidden", json.count("n_inner", 0));
    json.set("positions", json.count("n_positions"));
    json.set("vocabulary", json.count("vocab_size"));
    json.set("norm_epsilon", json.number("layer_norm_epsilon", 1e-5));
    json.set("tied", json.flag("tie_word_embeddings", true));
}

// The base and the scaling of rotary positions. Since version 5 transformers writes both into
// rope_parameters.
void read_rope(Published& json) {
    const Json* found = json.find("rope_scaling");
    if (found == nullptr) {
        found = json.find("rope_parameters");
    }
    Json scaling = found == nullptr ? Json::object() : *found;
    if (!scaling.is_object()) {
        json.refuse("has rotary positions that are no JSON object", "download it again");
    }
    double theta = json.number("rope_theta", 10000);
    if (const auto own = scaling.find("rope_theta"); own != scaling.end() && own->is_number()) {
        theta = own->get<double>();
    }
    scaling.erase("rope_theta");
    json.expect("partial_rotary_factor", 1.0, json.number("partial_rotary_factor", 1));
    bool is_scaled = false;
    for (const char* key : {"type", "rope_type"}) {  // the second one counts
        const auto type = scaling.find(key);
        is_scaled = type == scaling.end() || type->is_null() ? is_scaled : *type != "default";
    }
    if (const Json* original = json.find("original_max_position_embeddings");
        original != nullptr && scaling.contains("original_max_position_embeddings")) {
        scaling["original_max_position_embeddings"] = *original;  // as in transformers
    }
    json.set("rope_theta", theta);
    json.set("rope_scaling", is_scaled ? on_one_line(scaling) : std::string());
}

void read_llama(Published& json) {
    const bool is_qwen2 = json.word("model_type", "") == "qwen2";
    json.expect<std::string>("hidden_act", "silu", json.word("hidden_act", "silu"));
    json.expect("attention_bias", false, !is_qwen2 && json.flag("attention_bias", false));
    json.expect("mlp_bias", false, json.flag("mlp_bias", false));
    json.expect("use_sliding_window", false, json.flag("use_sliding_window", false));
    const std::int64_t width = json.count("hidden_size");
    const std::int64_t heads = json.count("num_attention_heads");
    if (heads > 0) {
        json.expect("head_dim", width / heads, json.count("head_dim", width / heads));
    }
    json.set("layers", json.count("num_hidden_layers"));
    json.set("heads", heads);
    json.set("kv_heads", is_qwen2 ? json.count("num_key_value_heads")
                                  : json.count("num_key_value_heads", heads));
    json.set("width", width);
    json.set("hidden", json.count("intermediate_size"));
    json.set("positions", json.count("max_position_embeddings"));
    json.set("vocabulary", json.count("vocab_size"));
    json.set("norm_epsilon", json.number("rms_norm_eps", 1e-6));
    json.set("tied", json.flag("tie_word_embeddings", false));
    json.set("qkv_bias", is_qwen2);
    read_rope(json);
}

OrderedJson write_gpt2(const config::ModelSettings& settings) {
    return {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", "gpt2"},
            {"vocab_size", settings.vocabulary},
            {"n_positions", settings.most_positions()},
            {"n_embd", settings.width},
            {"n_inner", settings.hidden_width()},
            {"n_layer", settings.layers},
            {"n_head", settings.heads},
            {"activation_function", "gelu_new"},
            {"layer_norm_epsilon", settings.norm_epsilon},
            {"resid_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0}};
}

OrderedJson write_llama(const config::ModelSettings& settings) {
    OrderedJson json = {
        {"architectures", {settings.qkv_bias ? "Qwen2ForCausalLM" : "LlamaForCausalLM"}},
        {"model_type", settings.qkv_bias ? "qwen2" : "llama"},
        {"vocab_size", settings.vocabulary},
        {"hidden_size", settings.width},
        {"intermediate_size", settings.hidden_width()},
        {"num_hidden_layers", settings.layers},
        {"num_attention_heads", settings.heads},
        {"num_key_value_heads", settings.key_heads()},
        {"hidden_act", "silu"},
        {"max_position_embeddings", settings.most_positions()},
        {"rms_norm_eps", settings.norm_epsilon},
        {"rope_theta", settings.rope_theta},
        {"rope_scaling", nullptr}};
    const std::string scaling = rope_scaling_on_one_line(settings);
    if (!scaling.empty()) {
        json["rope_scaling"] = OrderedJson::parse(scaling);
    }
    if (settings.qkv_bias) {
        json["use_sliding_window"] = false;
    } else {
        json["attention_bias"] = false;
        json["mlp_bias"] = false;
    }
    return json;
}

struct Family {
    config::ModelFamily network;
    std::vector<std::string_view> types;  // the model_type of a config.json
    void (*read)(Published& json);
    OrderedJson (*write)(const config::ModelSettings& settings);
};

const std::vector<Family>& families() {
    static const std::vector<Family> all = {
        {config::ModelFamily::gpt, {"gpt2"}, read_gpt2, write_gpt2},
        {config::ModelFamily::llama, {"llama", "qwen2"}, read_llama, write_llama},
    };
    return all;
}

const Family& family_of(const Published& json) {
    const std::string type = json.word("model_type", "");
    std::string known;
    for (const Family& family : families()) {
        for (const std::string_view name : family.types) {
            if (name == type) {
                return family;
            }
            known += text(known.empty() ? "" : ", ", config::written(name));
        }
    }
    json.refuse(text("has the model_type ", config::written(std::string_view(type)),
                     ", and nearstep knows ", known),
                "name another model in model.from, or train it with the Python package");
}

}  // namespace

std::vector<config::TomlEntry> read_hugging_face_config(const std::string& path,
                                                        std::string_view content) {
    Published json(path, content);
    if (json.find("quantization_config") != nullptr) {
        json.refuse("describes quantised weights", "name the model in F32, F16 or BF16");
    }
    const Family& family = family_of(json);
    json.set("architecture", std::string(name_of(family.network)));
    family.read(json);
    const Json ids = json.token_ids();
    for (const auto& [name, value] : ids.items()) {
        if (!is_token_id(value)) {
            json.refuse(text("has another value than a whole number or a list of them for ",
                             config::on_one_line(name)),
                        "download it again");
        }
    }
    json.set("token_ids", on_one_line(ids));
    return std::move(json).entries();
}

std::vector<config::TomlEntry> read_generation_config(const std::string& path,
                                                      std::string_view content) {
    Published json(path, content);
    json.set("generation_config", on_one_line(json.all()));
    return std::move(json).entries();
}

void check_export_settings(const config::ModelSettings& settings) {
    static_cast<void>(token_ids_of(settings));
    static_cast<void>(generation_config(settings));
}

std::string generation_config(const config::ModelSettings& settings) {
    return settings.generation_config.empty()
               ? ""
               : parse_setting("model.generation_config", settings.generation_config).dump(2) +
                     "\n";
}

std::string hugging_face_config(const config::ModelSettings& settings, Dtype dtype) {
    const auto family = std::ranges::find(families(), settings.architecture, &Family::network);
    expects(family != families().end(), "a published config.json describes the architecture");
    OrderedJson json = family->write(settings);
    json.update(token_ids_of(settings));
    json["tie_word_embeddings"] = settings.tied;
    json["torch_dtype"] = dtype == Dtype::fp32   ? "float32"
                          : dtype == Dtype::fp16 ? "float16"
                                                 : "bfloat16";
    return json.dump(2) + "\n";
}

}  // namespace nearstep::model
