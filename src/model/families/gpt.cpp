// GPT-2 (Radford et al. 2019): pre-norm decoder, learned positions, output layer tied to the token
// embedding unless model.tied is false. Weights are input x output, as in the published
// checkpoints. Used by architecture.cpp's table.
#include "base/error.hpp"
#include "model/architecture.hpp"
#include "model/lean_products.hpp"

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

namespace nearstep::model {

namespace {

using Tensors = std::vector<at::Tensor>;

void append_layer(Geometry& geometry, const std::string& name,
                  const config::ModelSettings& settings, const Starts& starts) {
    const std::int64_t width = settings.width;
    const std::int64_t hidden = settings.hidden_width();
    const auto append = [&](const char* suffix, std::vector<std::int64_t> shape, StartRule start) {
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

at::Tensor attention(const at::Tensor& queries_keys_values, std::int64_t heads) {
    const std::int64_t width = queries_keys_values.size(2) / 3;
    // The backward of unbind() writes the three gradients once; that of three narrow() adds them.
    const Tensors parts = queries_keys_values
                              .view({queries_keys_values.size(0), queries_keys_values.size(1), 3,
                                     heads, width / heads})
                              .unbind(2);
    return attend(parts[0].transpose(1, 2), parts[1].transpose(1, 2), parts[2].transpose(1, 2));
}

at::Tensor run_embedding(const Tensors& parameters, const at::Tensor& tokens) {
    return at::embedding(parameters[0], tokens) + parameters[1].narrow(0, 0, tokens.size(1));
}

at::Tensor run_layer(const Tensors& p, const at::Tensor& input, std::int64_t heads, double epsilon,
                     OutputUse use) {
    const at::Tensor mixed =
        attention(norm_affine(input, {p[0], p[1], epsilon}, p[2], p[3]), heads);
    const at::Tensor middle = input + affine(mixed, p[4], p[5]);
    const at::Tensor hidden = norm_affine(middle, {p[6], p[7], epsilon}, p[8], p[9]);
    return middle + gelu_affine(hidden, p[10], p[11], use);
}

// `parameters`: ln_f.weight, ln_f.bias and the output weights.
at::Tensor run_head(const Tensors& parameters, const at::Tensor& input, double epsilon) {
    return output_product(layer_norm(input, {parameters[0], parameters[1], epsilon}),
                          parameters[2]);
}

// The blocks are "embedding", "h.0", "h.1", ..., "head".
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

std::vector<BlockFunction> make_gpt_functions(const config::ModelSettings& settings) {
    const std::int64_t heads = settings.heads;
    const double epsilon = settings.norm_epsilon;
    const auto width = static_cast<std::size_t>(settings.width);
    const auto hidden = static_cast<std::size_t>(settings.hidden_width());
    const BlockFunction layer = {
        .run = [=](const Tensors& parameters, const at::Tensor& input,
                   OutputUse use) { return run_layer(parameters, input, heads, epsilon, use); },
        .borrowed = {},
        // Queries, keys and values, the mixed values, the middle, the
        // hidden layer before gelu. The output is the next block's input.
        .kept_elems = 5 * width + hidden,
        .most_elems = 12 * width + 4 * hidden};
    return decoder_functions(settings, run_embedding, layer,
                             [=](const Tensors& parameters, const at::Tensor& input) {
                                 return run_head(parameters, input, epsilon);
                             });
}

}  // namespace

extern const Architecture gpt_architecture;
const Architecture gpt_architecture = {describe_gpt, make_gpt_functions};

}  // namespace nearstep::model
