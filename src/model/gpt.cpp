#include "model/gpt.hpp"

#include "model/lean_products.hpp"

#include <ATen/ATen.h>

namespace nearstep::model {

namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor attention(const at::Tensor& queries_keys_values, std::int64_t heads) {
    const std::int64_t rows = queries_keys_values.size(0);
    const std::int64_t columns = queries_keys_values.size(1);
    const std::int64_t width = queries_keys_values.size(2) / 3;
    const auto part = [&](std::int64_t index) {
        return queries_keys_values.narrow(2, index * width, width)
            .view({rows, columns, heads, width / heads})
            .transpose(1, 2);
    };
    constexpr double kDropout = 0.0;
    return at::scaled_dot_product_attention(part(0), part(1), part(2), {}, kDropout,
                                            /*is_causal=*/true)
        .transpose(1, 2)
        .reshape({rows, columns, width});
}

at::Tensor run_embedding(const Tensors& parameters, const at::Tensor& tokens) {
    return at::embedding(parameters[0], tokens) + parameters[1].narrow(0, 0, tokens.size(1));
}

at::Tensor run_layer(const Tensors& p, const at::Tensor& input, std::int64_t heads) {
    const at::Tensor mixed = attention(norm_affine(input, {p[0], p[1]}, p[2], p[3]), heads);
    const at::Tensor middle = input + affine(mixed, p[4], p[5]);
    const at::Tensor hidden = norm_affine(middle, {p[6], p[7]}, p[8], p[9]);
    return middle + gelu_affine(hidden, p[10], p[11]);
}

// `parameters`: ln_f.weight, ln_f.bias and the borrowed wte.weight.
at::Tensor run_head(const Tensors& parameters, const at::Tensor& input) {
    return at::matmul(layer_norm(input, {parameters[0], parameters[1]}), parameters[2].t());
}

}  // namespace

std::vector<BlockFunction> make_gpt_functions(const config::ModelSettings& settings) {
    std::vector<BlockFunction> functions;
    functions.push_back({.run = run_embedding, .borrowed = {}, .format = BlockFormat::fp32});
    const std::int64_t heads = settings.heads;
    // Queries, keys and values, the mixed values, the middle, the hidden layer before gelu. The
    // output is the next block's input.
    const std::size_t kept = 9 * static_cast<std::size_t>(settings.width);
    for (int layer = 0; layer < settings.layers; ++layer) {
        functions.push_back({.run =
                                 [heads](const Tensors& parameters, const at::Tensor& input) {
                                     return run_layer(parameters, input, heads);
                                 },
                             .borrowed = {},
                             .kept_elems = kept});
    }
    functions.push_back({.run = run_head, .borrowed = {0}});
    return functions;
}

}  // namespace nearstep::model
