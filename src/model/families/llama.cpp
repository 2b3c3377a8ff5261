// Llama (Touvron et al. 2023) and Qwen2: pre-norm decoder with RMS norms, rotary positions, a gated
// hidden layer and, if model.kv_heads says so, several attention heads for each head of keys and
// values. Weights are output x input, as in the published checkpoints. Used by
// architecture.cpp's table.
#include "base/error.hpp"
#include "model/architecture.hpp"
#include "model/lean_products.hpp"
#include "model/rope.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <string>
#include <utility>

namespace nearstep::model {

namespace {

using Tensors = std::vector<at::Tensor>;

void append_llama_layer(Geometry& geometry, const std::string& name,
                        const config::ModelSettings& settings, const Starts& starts) {
    const std::int64_t width = settings.width;
    const std::int64_t key_width = settings.key_width();
    const std::int64_t hidden = settings.hidden_width();
    const auto append = [&](const char* suffix, std::vector<std::int64_t> shape, StartRule start) {
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

// Cosines and sines of all rotations, [columns, pairs]. All layers share one table, which is made
// anew if the sequences' length, the format or the device changes.
class RotationTable {
public:
    explicit RotationTable(config::ModelSettings settings) : settings_(std::move(settings)) {}

    void fit(const at::Tensor& input) {
        const std::int64_t columns = input.size(1);
        if (cosines_.defined() && cosines_.size(0) == columns &&
            cosines_.scalar_type() == input.scalar_type() && cosines_.device() == input.device()) {
            return;
        }
        const c10::NoGradGuard no_grad;
        Rope rope = rope_of(settings_, static_cast<int>(columns));
        const at::Tensor frequencies =
            at::from_blob(rope.frequencies.data(),
                          {static_cast<std::int64_t>(rope.frequencies.size())}, at::kFloat)
                .to(input.device());
        const at::Tensor angles =
            at::outer(at::arange(columns, frequencies.options()), frequencies);
        cosines_ = (angles.cos() * rope.factor).to(input.scalar_type());
        sines_ = (angles.sin() * rope.factor).to(input.scalar_type());
    }

    // x [rows, heads, columns, elems]. Element i of a head pairs with element i + elems / 2.
    at::Tensor rotate(const at::Tensor& x) const {
        const std::int64_t pairs = x.size(3) / 2;
        const at::Tensor first = x.narrow(3, 0, pairs);
        const at::Tensor second = x.narrow(3, pairs, pairs);
        return at::cat({first * cosines_ - second * sines_, second * cosines_ + first * sines_}, 3);
    }

private:
    config::ModelSettings settings_;
    at::Tensor cosines_;
    at::Tensor sines_;
};

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
    return at::rms_norm(x, {x.size(-1)}, weight, epsilon);
}

at::Tensor run_llama_embedding(const Tensors& parameters, const at::Tensor& tokens) {
    return at::embedding(parameters[0], tokens);
}

// `p`: the layer's parameters in the order of its geometry; the biases may be missing.
at::Tensor run_llama_layer(const Tensors& p, const at::Tensor& input, RotationTable& rotations,
                           const config::ModelSettings& settings, OutputUse use) {
    rotations.fit(input);
    const at::Tensor normed = rms_norm(input, p[0], settings.norm_epsilon);
    const auto heads_of = [&](std::size_t part, std::int64_t heads) {
        const at::Tensor bias = settings.qkv_bias ? p[8 + part] : at::Tensor();
        return at::linear(normed, p[part], bias)
            .view({input.size(0), input.size(1), heads, -1})
            .transpose(1, 2);
    };
    const at::Tensor mixed = attend(rotations.rotate(heads_of(1, settings.heads)),
                                    rotations.rotate(heads_of(2, settings.key_heads())),
                                    heads_of(3, settings.key_heads()));
    const at::Tensor middle = input + at::linear(mixed, p[4]);
    const at::Tensor to_hidden = rms_norm(middle, p[5], settings.norm_epsilon);
    return middle +
           silu_linear(at::linear(to_hidden, p[6]), at::linear(to_hidden, p[7]), p[8], use);
}

// `parameters`: model.norm.weight and the output weights.
at::Tensor run_llama_head(const Tensors& parameters, const at::Tensor& input, double epsilon) {
    return output_product(rms_norm(input, parameters[0], epsilon), parameters[1]);
}

// The blocks are "embedding", "layers.0", "layers.1", ..., "head". Throws ConfigError for an
// unusable model.rope_scaling.
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

std::vector<BlockFunction> make_llama_functions(const config::ModelSettings& settings) {
    const auto rotations = std::make_shared<RotationTable>(settings);
    const auto width = static_cast<std::size_t>(settings.width);
    const auto hidden = static_cast<std::size_t>(settings.hidden_width());
    const BlockFunction layer = {.run =
                                     [rotations, settings](const Tensors& parameters,
                                                           const at::Tensor& input, OutputUse use) {
                                         return run_llama_layer(parameters, input, *rotations,
                                                                settings, use);
                                     },
                                 .borrowed = {},
                                 // A block keeps both norms' outputs, queries, keys and values
                                 // (repeated for each head), the mixed values, the middle; the gate
                                 // and the factor of the hidden layer. On a CPU torch's norms keep
                                 // more.
                                 .kept_elems = 7 * width + 2 * hidden,
                                 .most_elems = 16 * width + 8 * hidden};
    return decoder_functions(
        settings, run_llama_embedding, layer,
        [epsilon = settings.norm_epsilon](const Tensors& parameters, const at::Tensor& input) {
            return run_llama_head(parameters, input, epsilon);
        });
}

}  // namespace

extern const Architecture llama_architecture;
const Architecture llama_architecture = {describe_llama, make_llama_functions};

}  // namespace nearstep::model
