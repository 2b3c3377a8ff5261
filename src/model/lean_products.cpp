// Products and norms that keep little for backward. Used by gpt.cpp and llama.cpp.
#include "model/lean_products.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>
#include <vector>

namespace nearstep::model {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using Tensors = torch::autograd::variable_list;

constexpr const char* kGeluForm = "tanh";

// Returns all rows of x as one matrix.
at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// The shape of x with rows of this width.
std::vector<std::int64_t> widened(const at::Tensor& x, std::int64_t width) {
    std::vector<std::int64_t> shape = x.sizes().vec();
    shape.back() = width;
    return shape;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> normalise(const at::Tensor& x,
                                                         const at::Tensor& weight,
                                                         const at::Tensor& bias, double epsilon) {
    return at::native_layer_norm(x, {x.size(-1)}, weight, bias, epsilon);
}

// The gradients of affine()'s weight and bias.
struct AffineGradients {
    at::Tensor weight;
    at::Tensor bias;
};

// `rows`: the product's input. `upstream`: the gradient of its output's rows.
AffineGradients affine_backward(const at::Tensor& rows, const at::Tensor& upstream) {
    return {.weight = rows.t().mm(upstream), .bias = upstream.sum(0)};
}

struct NormAffine : Function<NormAffine> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                              const at::Tensor& norm_weight, const at::Tensor& norm_bias,
                              const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
        const auto [normed, mean, deviation] = normalise(x, norm_weight, norm_bias, epsilon);
        context->saved_data["epsilon"] = epsilon;
        context->save_for_backward({x, norm_weight, norm_bias, weight, mean, deviation});
        return affine(normed, weight, bias);
    }

    static Tensors backward(AutogradContext* context, const Tensors& gradients) {
        const Tensors saved = context->get_saved_variables();
        const at::Tensor& x = saved[0];
        const at::Tensor upstream = rows_of(gradients[0]);
        const double epsilon = context->saved_data["epsilon"].toDouble();
        const at::Tensor normed = std::get<0>(normalise(x, saved[1], saved[2], epsilon));
        const auto product = affine_backward(rows_of(normed), upstream);
        const auto [of_x, of_norm_weight, of_norm_bias] = at::native_layer_norm_backward(
            upstream.mm(saved[3].t()).view_as(x), x, {x.size(-1)}, saved[4], saved[5], saved[1],
            saved[2], {true, true, true});
        return {of_x, of_norm_weight, of_norm_bias, product.weight, product.bias, at::Tensor()};
    }
};

struct GeluAffine : Function<GeluAffine> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                              const at::Tensor& weight, const at::Tensor& bias, OutputUse use) {
        context->save_for_backward({x, weight});
        return use == OutputUse::values ? affine(at::gelu(x, kGeluForm), weight, bias)
                                        : x.new_zeros(widened(x, weight.size(1)));
    }

    static Tensors backward(AutogradContext* context, const Tensors& gradients) {
        const Tensors saved = context->get_saved_variables();
        const at::Tensor& x = saved[0];
        const at::Tensor upstream = rows_of(gradients[0]);
        const auto product = affine_backward(rows_of(at::gelu(x, kGeluForm)), upstream);
        const at::Tensor of_x =
            at::gelu_backward(upstream.mm(saved[1].t()).view_as(x), x, kGeluForm);
        return {of_x, product.weight, product.bias, at::Tensor()};
    }
};

struct SiluLinear : Function<SiluLinear> {
    static at::Tensor forward(AutogradContext* context, const at::Tensor& gate,
                              const at::Tensor& factor, const at::Tensor& weight, OutputUse use) {
        context->save_for_backward({gate, factor, weight});
        return use == OutputUse::values ? at::linear(at::silu(gate) * factor, weight)
                                        : gate.new_zeros(widened(gate, weight.size(0)));
    }

    static Tensors backward(AutogradContext* context, const Tensors& gradients) {
        const Tensors saved = context->get_saved_variables();
        const at::Tensor opened = at::silu(saved[0]);
        const at::Tensor upstream = rows_of(gradients[0]);
        const at::Tensor of_product = upstream.mm(saved[2]).view_as(saved[0]);
        return {at::silu_backward(of_product * saved[1], saved[0]), of_product * opened,
                upstream.t().mm(rows_of(opened * saved[1])), at::Tensor()};
    }
};

}  // namespace

at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return at::addmm(bias, rows_of(x), weight).view(widened(x, weight.size(1)));
}

at::Tensor norm_affine(const at::Tensor& x, const Norm& norm, const at::Tensor& weight,
                       const at::Tensor& bias) {
    return NormAffine::apply(x, norm.weight, norm.bias, weight, bias, norm.epsilon);
}

at::Tensor gelu_affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       OutputUse use) {
    return GeluAffine::apply(x, weight, bias, use);
}

at::Tensor silu_linear(const at::Tensor& gate, const at::Tensor& factor, const at::Tensor& weight,
                       OutputUse use) {
    return SiluLinear::apply(gate, factor, weight, use);
}

at::Tensor output_product(const at::Tensor& x, const at::Tensor& weight) {
    const std::int64_t missing = (kLogitColumns - weight.size(0) % kLogitColumns) % kLogitColumns;
    const bool is_padded = weight.is_cuda() && missing > 0;
    return at::linear(x, is_padded ? at::constant_pad_nd(weight, {0, 0, 0, missing}) : weight);
}

at::Tensor layer_norm(const at::Tensor& x, const Norm& norm) {
    return std::get<0>(normalise(x, norm.weight, norm.bias, norm.epsilon));
}

}  // namespace nearstep::model
