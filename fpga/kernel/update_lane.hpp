// The arithmetic of one optimizer lane: the single definition that every engine computes.
//
// C++14, no exceptions, no containers, so that the FPGA kernels use it as it stands. The order of
// the operations is part of the definition and nothing may be contracted (-ffp-contract=off): all
// engines give the same bits. Source: Loshchilov and Hutter, "Decoupled weight decay
// regularization" (2019).
#pragma once

#include <cmath>

// One inside the other, because C++14 cannot write them as one.
namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

// What a step gives to every lane; computed once on the host in double and rounded to fp32.
struct UpdateScalars {
    float gradient_scale = 1;  // 1 / loss scale, times the clipping factor
    float beta1 = 0.9F;
    float one_minus_beta1 = 0.1F;
    float beta2 = 0.95F;
    float one_minus_beta2 = 0.05F;
    float epsilon = 1e-8F;
    float decay_factor = 1;  // 1 - learning rate * weight decay
    float step_size = 0;     // learning rate / (1 - beta1^t)
    float root_scale = 1;    // 1 / sqrt(1 - beta2^t)
};

// AdamW with decoupled decay of one parameter.
inline void adamw_lane(const UpdateScalars& scalars, float gradient, float& master, float& moment1,
                       float& moment2) {
    const float g = gradient * scalars.gradient_scale;
    moment1 = scalars.beta1 * moment1 + scalars.one_minus_beta1 * g;
    moment2 = scalars.beta2 * moment2 + scalars.one_minus_beta2 * (g * g);
    const float root = std::sqrt(moment2) * scalars.root_scale + scalars.epsilon;
    master = master * scalars.decay_factor - scalars.step_size * (moment1 / root);
}

}  // namespace fpga
}  // namespace nearstep
