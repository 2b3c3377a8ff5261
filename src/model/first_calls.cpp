// Makes the first calls of torch's libraries. Used by compute_device.cpp.
#include "model/first_calls.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstdint>
#include <mutex>

namespace nearstep::model {

namespace {

// One row of this size runs on one thread. Vector functions give each thread at least 2,048
// elements; normalisation and attention give each thread whole rows.
constexpr std::int64_t kElems = 64;

// All functions that torch takes from MKL (ATen/cpu/vml.h), for fp32 and fp64.
void call_vector_functions(at::ScalarType type) {
    const at::Tensor values = at::full({kElems}, 0.5, type);
    for (auto* function :
         {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc, at::erfinv, at::exp, at::log,
          at::log10, at::log2, at::sin, at::sqrt, at::tan, at::tanh, at::trunc}) {
        function(values);
    }
}

// The layers of our networks (gpt.cpp, llama.cpp, loss.cpp, sampling) and of common Python models,
// with their backward.
void call_layers(at::ScalarType type) {
    const c10::AutoGradMode with_grad(true);
    const at::Tensor input = at::full({1, kElems}, 0.5, type).requires_grad_(true);
    const at::Tensor weight = at::full({kElems, kElems}, 0.1, type).requires_grad_(true);
    const at::Tensor scale = at::ones({kElems}, type).requires_grad_(true);
    const at::Tensor shift = at::zeros({kElems}, type).requires_grad_(true);
    const at::Tensor normed = at::layer_norm(input, {kElems}, scale, shift);
    const at::Tensor product = at::addmm(shift, normed, weight);
    const at::Tensor hidden = at::gelu(product, "tanh") + at::gelu(product, "none") +
                              at::silu(at::rms_norm(product, {kElems}, scale));
    const at::Tensor heads = hidden.view({1, 1, 1, kElems});
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads, heads, heads, {}, 0.0, /*is_causal=*/true)
            .view({1, kElems});
    const at::Tensor shares = at::log_softmax(mixed, 1) + at::softmax(mixed, 1);
    torch::autograd::grad({shares.sum()}, {input, weight, scale, shift});
}

}  // namespace

void make_first_calls() {
    static std::once_flag are_made;
    std::call_once(are_made, [] {
        call_vector_functions(at::kFloat);
        call_vector_functions(at::kDouble);
        for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
            call_layers(type);
        }
    });
}

}  // namespace nearstep::model
