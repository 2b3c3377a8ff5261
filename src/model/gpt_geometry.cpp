#include "base/error.hpp"
#include "model/architecture.hpp"
#include "model/gpt.hpp"

#include <string>

namespace nearstep::model {

namespace {

void append_layer(Geometry& geometry, const std::string& name,
                  const config::ModelSettings& settings, const Starts& starts) {
    const std::int64_t width = settings.width;
    const std::int64_t hidden = settings.hidden_width();
    const auto append = [&](const char* suffix, std::vector<std::int64_t> shape, Start start) {
        append_parameter(geometry, name + "." + suffix, std::move(shape), start);
    };
    append_block(geometry, name);
    append("ln_1.weight", {width}, starts.one);
    append("ln_1.bias", {width}, starts.zero);
    append("attn.c_attn.weight", {width, 3 * width}, starts.weight);
    append("attn.c_attn.bias", {3 * width}, starts.zero);
    append("attn.c_proj.weight", {width, width}, starts.residual);
    append("attn.c_proj.bias", {width}, starts.zero);
    append("ln_2.weight", {width}, starts.one);
    append("ln_2.bias", {width}, starts.zero);
    append("mlp.c_fc.weight", {width, hidden}, starts.weight);
    append("mlp.c_fc.bias", {hidden}, starts.zero);
    append("mlp.c_proj.weight", {hidden, width}, starts.residual);
    append("mlp.c_proj.bias", {width}, starts.zero);
}

}  // namespace

Geometry describe_gpt(const config::ModelSettings& settings) {
    const Starts starts = starts_for(settings.layers);
    const std::int64_t width = settings.width;

    Geometry geometry;
    append_block(geometry, "embedding");
    append_parameter(geometry, "wte.weight", {settings.vocabulary, width}, starts.weight);
    append_parameter(geometry, "wpe.weight", {settings.most_positions(), width},
                     {.deviation = 0.01, .value = 0});
    for (int layer = 0; layer < settings.layers; ++layer) {
        append_layer(geometry, text("h.", layer), settings, starts);
    }
    append_block(geometry, "head");
    append_parameter(geometry, "ln_f.weight", {width}, starts.one);
    append_parameter(geometry, "ln_f.bias", {width}, starts.zero);
    append_output_weights(geometry, settings);
    return geometry;
}

}  // namespace nearstep::model
