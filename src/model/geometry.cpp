// Lays out the parameter vector and its start values. Used by the trainer and by reports.
#include "model/geometry.hpp"

#include "base/error.hpp"
#include "base/random.hpp"
#include "config/checks.hpp"
#include "config/value.hpp"
#include "model/architecture.hpp"
#include "model/hugging_face.hpp"
#include "model/rope.hpp"

#include <algorithm>
#include <array>

namespace nearstep::model {

namespace {

// The random stream of initial values, separate from other uses of the run's seed.
constexpr std::uint64_t kStartStream = 0x7374617274;

struct Size {
    const char* key;
    int value;
};

void check_sizes(const config::ModelSettings& settings) {
    const std::array<Size, 5> sizes{{{"layers", settings.layers},
                                     {"heads", settings.heads},
                                     {"width", settings.width},
                                     {"context", settings.context},
                                     {"vocabulary", settings.vocabulary}}};
    for (const Size& size : sizes) {
        if (size.value < 1) {
            throw ConfigError(
                text("model.", size.key, " is ", size.value, ": set it to 1 or more."));
        }
    }
}

}  // namespace

Geometry describe(const config::ModelSettings& settings) {
    const Architecture& architecture = architecture_of(settings.architecture);
    check_sizes(settings);
    config::check_model(settings, {});
    check_export_settings(settings);
    return architecture.describe(settings);
}

std::vector<MatrixNote> describe_matrices(const config::ModelSettings& settings) {
    const Geometry geometry = describe(settings);
    const std::size_t embeddings = geometry.blocks.front().last_parameter;
    const bool is_gpt = settings.architecture == config::ModelFamily::gpt;
    std::vector<MatrixNote> notes;
    for (std::size_t i = 0; i < geometry.parameters.size(); ++i) {
        const Parameter& parameter = geometry.parameters[i];
        if (parameter.shape.size() != 2) {
            continue;
        }
        const bool is_product = i >= embeddings;
        const bool is_transposed = is_gpt && parameter.name != kOutputWeights;
        notes.push_back({.name = parameter.name,
                         .dimensions = !is_product     ? "entry, feature"
                                       : is_transposed ? "input, output"
                                                       : "output, input",
                         .is_output = settings.tied && i == 0});
    }
    return notes;
}

Geometry describe_trained(const config::ModelSettings& settings) {
    constexpr std::size_t kMostElems = 2'000'000'000'000;
    Geometry geometry = describe(settings);
    if (geometry.elems > kMostElems) {
        throw ConfigError(text("The model has ", static_cast<double>(geometry.elems),
                               " parameters, of which a run can have at most ",
                               static_cast<double>(kMostElems),
                               ": lower model.layers, model.width or model.vocabulary."));
    }
    return geometry;
}

std::string describe_model(const config::ModelSettings& settings) {
    std::string line = text(name_of(settings.architecture), " layers=", settings.layers,
                            " heads=", settings.heads, " width=", settings.width,
                            " context=", settings.context, " vocabulary=", settings.vocabulary);
    config::ModelSettings defaults;
    defaults.architecture = settings.architecture;
    defaults.width = settings.width;
    const auto add_if = [&](bool is_other, const char* key, const std::string& value) {
        line += is_other ? text(" ", key, "=", value) : "";
    };
    add_if(settings.key_heads() != settings.heads, "kv_heads", text(settings.kv_heads));
    add_if(settings.hidden_width() != defaults.hidden_width(), "hidden", text(settings.hidden));
    add_if(settings.most_positions() != settings.context, "positions", text(settings.positions));
    add_if(!settings.tied, "tied", "false");
    add_if(settings.qkv_bias, "qkv_bias", "true");
    add_if(settings.norm_epsilon != defaults.norm_epsilon, "norm_epsilon",
           config::written(settings.norm_epsilon));
    add_if(settings.rope_theta != defaults.rope_theta, "rope_theta",
           config::written(settings.rope_theta));
    add_if(!settings.rope_scaling.empty(), "rope_scaling", rope_scaling_on_one_line(settings));
    return line;
}

void fill_start_values(const Geometry& geometry, std::uint64_t seed, std::size_t begin,
                       std::span<float> values) {
    const std::size_t end = begin + values.size();
    for (const Parameter& parameter : geometry.parameters) {
        const std::size_t first = std::max(begin, parameter.offset);
        const std::size_t last = std::min(end, parameter.offset + parameter.elems);
        for (std::size_t i = first; i < last; ++i) {
            const double noise =
                parameter.start.deviation > 0 ? random_normal(seed, kStartStream, i) : 0.0;
            values[i - begin] =
                static_cast<float>(parameter.start.value + parameter.start.deviation * noise);
        }
    }
}

}  // namespace nearstep::model
