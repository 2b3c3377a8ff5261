#include "model/gpt.hpp"

#include "model/architecture.hpp"
#include "model/attention.hpp"
#include "model/lean_products.hpp"

#include <ATen/ATen.h>

namespace nearstep::model {

namespace {

using Tensors = std::vector<at::Tensor>;

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

at::Tensor run_layer(const Tensors& p, const at::Tensor& input, std::int64_t heads,
                     double epsilon) {
    const at::Tensor mixed =
        attention(norm_affine(input, {p[0], p[1], epsilon}, p[2], p[3]), heads);
    const at::Tensor middle = input + affine(mixed, p[4], p[5]);
    const at::Tensor hidden = norm_affine(middle, {p[6], p[7], epsilon}, p[8], p[9]);
    return middle + gelu_affine(hidden, p[10], p[11]);
}

// `parameters`: ln_f.weight, ln_f.bias and the output weights.
at::Tensor run_head(const Tensors& parameters, const at::Tensor& input, double epsilon) {
    return output_product(layer_norm(input, {parameters[0], parameters[1], epsilon}),
                          parameters[2]);
}

}  // namespace

std::vector<BlockFunction> make_gpt_functions(const config::ModelSettings& settings) {
    const std::int64_t heads = settings.heads;
    const double epsilon = settings.norm_epsilon;
    const auto width = static_cast<std::size_t>(settings.width);
    const auto hidden = static_cast<std::size_t>(settings.hidden_width());
    const BlockFunction layer = {.run =
                                     [=](const Tensors& parameters, const at::Tensor& input) {
                                         return run_layer(parameters, input, heads, epsilon);
                                     },
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

}  // namespace nearstep::model
