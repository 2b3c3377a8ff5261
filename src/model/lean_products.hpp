// Products whose backward computes cheap values again instead of keeping them since forward.
#pragma once

#include "model/block_function.hpp"

#include <cstdint>

namespace at {
class Tensor;
}

namespace nearstep::model {

// x [..., in] times weight [in, out], plus bias [out].
at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

// A norm's weight and bias, both [in], and what is added to the variance.
struct Norm {
    const at::Tensor& weight;
    const at::Tensor& bias;
    double epsilon;
};

// affine() of the layer norm of x. Keeps x and each row's mean and deviation.
at::Tensor norm_affine(const at::Tensor& x, const Norm& norm, const at::Tensor& weight,
                       const at::Tensor& bias);

// affine() of gelu(x) in its tanh form; zeros where only the graph is used. Keeps x.
at::Tensor gelu_affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       OutputUse use);

// silu(gate) times `factor`, both [..., in], times the transpose of `weight` [out, in]; zeros where
// only the graph is used. Keeps gate and factor.
at::Tensor silu_linear(const at::Tensor& gate, const at::Tensor& factor, const at::Tensor& weight,
                       OutputUse use);

constexpr std::int64_t kLogitColumns = 64;

// The logits: x [..., in] times the transpose of `weight` [vocabulary, in]. On a GPU they have more
// columns, zeros, up to a multiple of kLogitColumns: products of matrices whose rows are not
// aligned to 16 bytes take five times as long there.
at::Tensor output_product(const at::Tensor& x, const at::Tensor& weight);

// Torch computes mean and variance in fp32, whatever the format of x.
at::Tensor layer_norm(const at::Tensor& x, const Norm& norm);

}  // namespace nearstep::model
