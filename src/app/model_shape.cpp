// Reads what suggest needs to know of a model. The networks of src/model compute fewer models, of
// which they must know more.
#include "app/model_shape.hpp"

#include "app/placement.hpp"
#include "base/error.hpp"
#include "base/input_file.hpp"
#include "base/json_text.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>

namespace nearstep::app {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kMostContext = 2048;
constexpr int kMostSize = 1 << 24;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
    throw ConfigError(
        text("The model's ", path, " ", why,
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

config::ModelSettings shape_of_file(const std::string& path) {
    const std::string content =
        InputFile(path, "The model's", "give the folder of a model, or a count of parameters.")
            .read_all();
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
    const auto tied = file.find("tie_word_embeddings");
    shape.tied = tied != file.end() && tied->is_boolean() ? tied->get<bool>() : !is_gated;
    if (shape.width % shape.heads !=
        0) {  // has heads of another width; their number matters little here
        shape.heads = shape.kv_heads = 1;
    }
    return shape;
}

// A llama of usual proportions: of its width, a layer for every 128.
config::ModelSettings shape_of_count(double parameters) {
    constexpr double kWidthOfLayer = 128;
    constexpr double kOfLayer = 12;  // times the width's square
    config::ModelSettings shape;
    shape.architecture = config::ModelFamily::llama;
    shape.tied = false;
    shape.vocabulary = 32000;
    shape.positions = kMostContext;
    const double ideal = std::cbrt(parameters * kWidthOfLayer / kOfLayer);
    shape.width =
        static_cast<int>(std::max(1.0, std::round(ideal / kWidthOfLayer)) * kWidthOfLayer);
    shape.heads = shape.width / static_cast<int>(kWidthOfLayer);
    const double of_layer = kOfLayer * shape.width * shape.width;
    const double around = 2.0 * shape.width * shape.vocabulary;
    shape.layers =
        static_cast<int>(std::clamp(std::round((parameters - around) / of_layer), 1.0, 1024.0));
    return shape;
}

// 0 if the word is no count.
double count_of(const std::string& word) {
    constexpr double kLeast = 1e4;
    constexpr double kMost = 1e13;
    char* end = nullptr;
    double count = std::strtod(word.c_str(), &end);
    const std::string unit(end);
    count *= unit == "B" || unit == "b"   ? 1e9
             : unit == "M" || unit == "m" ? 1e6
             : unit.empty()               ? 1
                                          : 0;
    return count >= kLeast && count <= kMost ? count : 0;
}

}  // namespace

plan::Task task_of(const std::string& model, int context) {
    std::error_code ignored;
    const double count = fs::exists(model, ignored) ? 0 : count_of(model);
    plan::Task task;
    if (count > 0) {
        task.model = shape_of_count(count);
    } else {
        const bool is_folder = fs::is_directory(model, ignored);
        task.model = shape_of_file(is_folder ? model + "/config.json" : model);
    }
    const int most = task.model.positions > 0 ? task.model.positions : kMostContext;
    task.model.context = context > 0 ? context : std::min(most, kMostContext);
    task.model.positions = std::max(task.model.positions, task.model.context);
    task.size = size_of(task.model);
    if (count > 0) {
        task.size.parameters = static_cast<std::size_t>(count);
    }
    return task;
}

}  // namespace nearstep::app
