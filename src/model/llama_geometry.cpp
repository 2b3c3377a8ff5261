#include "base/error.hpp"
#include "model/architecture.hpp"
#include "model/llama.hpp"
#include "model/rope.hpp"

#include <string>

namespace nearstep::model {

namespace {

void append_llama_layer(Geometry& geometry, const std::string& name,
                        const config::ModelSettings& settings, const Starts& starts) {
    const std::int64_t width = settings.width;
    const std::int64_t key_width = settings.key_width();
    const std::int64_t hidden = settings.hidden_width();
    const auto append = [&](const char* suffix, std::vector<std::int64_t> shape, Start start) {
        append_parameter(geometry, name + "." + suffix, std::move(shape), start);
    };
    append_block(geometry, name.substr(name.find('.') + 1));
    append("input_layernorm.weight", {width}, starts.one);
    append("self_attn.q_proj.weight", {width, width}, starts.weight);
    append("self_attn.k_proj.weight", {key_width, width}, starts.weight);
    append("self_attn.v_proj.weight", {key_width, width}, starts.weight);
    append("self_attn.o_proj.weight", {width, width}, starts.residual);
    append("post_attention_layernorm.weight", {width}, starts.one);
    append("mlp.gate_proj.weight", {hidden, width}, starts.weight);
    append("mlp.up_proj.weight", {hidden, width}, starts.weight);
    append("mlp.down_proj.weight", {width, hidden}, starts.residual);
    if (settings.qkv_bias) {
        append("self_attn.q_proj.bias", {width}, starts.zero);
        append("self_attn.k_proj.bias", {key_width}, starts.zero);
        append("self_attn.v_proj.bias", {key_width}, starts.zero);
    }
}

}  // namespace

Geometry describe_llama(const config::ModelSettings& settings) {
    static_cast<void>(rope_of(settings, settings.context));  // throws early
    const Starts starts = starts_for(settings.layers);
    Geometry geometry;
    append_block(geometry, "embedding");
    append_parameter(geometry, "model.embed_tokens.weight", {settings.vocabulary, settings.width},
                     starts.weight);
    for (int layer = 0; layer < settings.layers; ++layer) {
        append_llama_layer(geometry, text("model.layers.", layer), settings, starts);
    }
    append_block(geometry, "head");
    append_parameter(geometry, "model.norm.weight", {settings.width}, starts.one);
    append_output_weights(geometry, settings);
    return geometry;
}

}  // namespace nearstep::model
