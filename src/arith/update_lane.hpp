// The optimizer's arithmetic for one parameter: the single definition for all engines.
//
// C++14, no exceptions, no containers, so that the FPGA kernels can use it unchanged. The order of
// operations is part of the definition, and operations must not be fused (-ffp-contract=off), so
// that all engines give the same bits.
#pragma once

#include "arith/formats.hpp"
#include "base/host_device.hpp"

#include <cmath>
#include <cstdint>

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace arith {

// A moment that an optimizer does not use keeps its stored value.
NEARSTEP_HOST_DEVICE constexpr bool uses_moment1(Optimizer optimizer) {
    return optimizer != Optimizer::adagrad;
}
NEARSTEP_HOST_DEVICE constexpr bool uses_moment2(Optimizer optimizer) {
    return optimizer != Optimizer::sgd && optimizer != Optimizer::lion;
}

// The direction of the master's step, before it is divided, is the new moment1.
NEARSTEP_HOST_DEVICE constexpr bool is_moment1_direction(Optimizer optimizer) {
    return optimizer != Optimizer::adagrad && optimizer != Optimizer::lion;
}

// The number of updates so far corrects step_size and root_scale.
NEARSTEP_HOST_DEVICE constexpr bool corrects_bias(Optimizer optimizer) {
    return optimizer == Optimizer::adamw || optimizer == Optimizer::adam;
}

// Decay multiplies the master; otherwise it is added to the gradient.
NEARSTEP_HOST_DEVICE constexpr bool has_decoupled_decay(Optimizer optimizer) {
    return optimizer == Optimizer::adamw || optimizer == Optimizer::lion;
}

// A step's constants for all parameters. The host computes them in double and rounds to fp32.
struct UpdateScalars {
    float gradient_scale = 1;  // 1 / loss scale, times the clipping factor
    float beta1 = 0.9F;
    float one_minus_beta1 = 0.1F;
    float beta2 = 0.95F;
    float one_minus_beta2 = 0.05F;
    float epsilon = 1e-8F;
    float decay_factor = 1;    // 1 - learning rate * weight decay, if decay is decoupled
    float gradient_decay = 0;  // weight decay, if it is added to the gradient
    float step_size = 0;       // learning rate; divided by 1 - beta1^t if bias is corrected
    float root_scale = 1;      // 1 / sqrt(1 - beta2^t) if bias is corrected
    Optimizer optimizer = Optimizer::adamw;
    std::uint64_t random_key = 0;  // the step's, for stochastic rounding
};

// Below, Real is float or a vector of floats. Vectors specialise this for their square root.
template <typename Real>
struct Root {
    NEARSTEP_HOST_DEVICE static Real of(Real value) { return std::sqrt(value); }
};

// The first half of an update: new moments. Returns the direction of the master's step. If
// `optimizer` is a constant, the switches compile away.
template <typename Real>
NEARSTEP_HOST_DEVICE inline Real update_moments(Optimizer optimizer, const UpdateScalars& scalars,
                                                Real gradient, Real master, Real& moment1,
                                                Real& moment2) {
    const Real scaled = gradient * scalars.gradient_scale;
    const Real g =
        has_decoupled_decay(optimizer) ? scaled : scaled + scalars.gradient_decay * master;
    switch (optimizer) {
        case Optimizer::adamw:
        case Optimizer::adam:
            moment1 = scalars.beta1 * moment1 + scalars.one_minus_beta1 * g;
            moment2 = scalars.beta2 * moment2 + scalars.one_minus_beta2 * (g * g);
            return moment1;
        case Optimizer::sgd:
            moment1 = scalars.beta1 * moment1 + g;
            return moment1;
        case Optimizer::adagrad:
            moment2 = moment2 + g * g;
            return g;
        case Optimizer::lion: {
            const Real direction = scalars.beta1 * moment1 + scalars.one_minus_beta1 * g;
            moment1 = scalars.beta2 * moment1 + scalars.one_minus_beta2 * g;
            return (direction > 0 ? 1.0F : 0.0F) - (direction < 0 ? 1.0F : 0.0F);
        }
    }
    return g;
}

// The second half: the new master. `root2`: the square root of the new moment2, if it is used.
template <typename Real>
NEARSTEP_HOST_DEVICE inline void update_master(Optimizer optimizer, const UpdateScalars& scalars,
                                               Real direction, Real root2, Real& master) {
    switch (optimizer) {
        case Optimizer::adamw:
        case Optimizer::adam:
            direction = direction / (root2 * scalars.root_scale + scalars.epsilon);
            break;
        case Optimizer::adagrad:
            direction = direction / (root2 + scalars.epsilon);
            break;
        case Optimizer::sgd:
        case Optimizer::lion:
            break;
    }
    const Real decayed = has_decoupled_decay(optimizer) ? master * scalars.decay_factor : master;
    master = decayed - scalars.step_size * direction;
}

// Updates one parameter, or a vector of them.
template <typename Real>
NEARSTEP_HOST_DEVICE inline void update_lane(Optimizer optimizer, const UpdateScalars& scalars,
                                             Real gradient, Real& master, Real& moment1,
                                             Real& moment2) {
    const Real direction = update_moments(optimizer, scalars, gradient, master, moment1, moment2);
    const Real root2 = uses_moment2(optimizer) ? Root<Real>::of(moment2) : direction;
    update_master(optimizer, scalars, direction, root2, master);
}

}  // namespace arith
}  // namespace nearstep
