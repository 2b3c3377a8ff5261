#include "base/error.hpp"
#include "model/architecture.hpp"
#include "model/gpt.hpp"

#include <cmath>
#include <string>

namespace nearstep::model {

namespace {

void append_layer(Geometry& geometry, const std::string& name, std::int64_t width, Start weight,
                  Start residual) {
    const Start zero{.deviation = 0, .value = 0};
    const Start one{.deviation = 0, .value = 1};
    const auto append = [&](const char* suffix, std::vector<std::int64_t> shape, Start start) {
        append_parameter(geometry, name + "." + suffix, std::move(shape), start);
    };
    append_block(geometry, name);
    append("ln_1.weight", {width}, one);
    append("ln_1.bias", {width}, zero);
    append("attn.c_attn.weight", {width, 3 * width}, weight);
    append("attn.c_attn.bias", {3 * width}, zero);
    append("attn.c_proj.weight", {width, width}, residual);
    append("attn.c_proj.bias", {width}, zero);
    append("ln_2.weight", {width}, one);
    append("ln_2.bias", {width}, zero);
    append("mlp.c_fc.weight", {width, 4 * width}, weight);
    append("mlp.c_fc.bias", {4 * width}, zero);
    append("mlp.c_proj.weight", {4 * width, width}, residual);
    append("mlp.c_proj.bias", {width}, zero);
}

}  // namespace

Geometry describe_gpt(const config::ModelSettings& settings) {
    if (settings.width % settings.heads != 0) {
        throw ConfigError(text("model.width is ", settings.width, " and model.heads is ",
                               settings.heads,
                               ": choose a width that is a multiple of the heads."));
    }
    // GPT-2's standard deviations: 0.02, positions 0.01. Weights that add to the residual stream
    // are divided by the square root of the number of additions.
    const Start weight{.deviation = 0.02, .value = 0};
    const Start residual{.deviation = 0.02 / std::sqrt(2.0 * settings.layers), .value = 0};
    const std::int64_t width = settings.width;

    Geometry geometry;
    append_block(geometry, "embedding");
    append_parameter(geometry, "wte.weight", {settings.vocabulary, width}, weight);
    append_parameter(geometry, "wpe.weight", {settings.context, width},
                     {.deviation = 0.01, .value = 0});
    for (int layer = 0; layer < settings.layers; ++layer) {
        append_layer(geometry, text("h.", layer), width, weight, residual);
    }
    append_block(geometry, "head");
    append_parameter(geometry, "ln_f.weight", {width}, {.deviation = 0, .value = 1});
    append_parameter(geometry, "ln_f.bias", {width}, {.deviation = 0, .value = 0});
    return geometry;
}

}  // namespace nearstep::model
