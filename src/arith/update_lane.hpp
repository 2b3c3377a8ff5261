// The optimizer's arithmetic for one parameter: the single definition for all engines.
//
// C++14, no exceptions, no containers, so that the FPGA kernels can use it unchanged. The order of
// operations is part of the definition, and operations must not be fused (-ffp-contract=off), so
// that all engines give the same bits.
#pragma once

#include <cmath>
#include <cstdint>

// C++14 has no nested namespace definitions.
namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace arith {

// adamw: Loshchilov and Hutter, "Decoupled weight decay regularization" (2019).
// adam: Kingma and Ba, "Adam" (2015); weight decay is added to the gradient (L2).
// sgd: momentum beta1 without dampening: moment1 = beta1 * moment1 + gradient; L2.
// adagrad: Duchi, Hazan and Singer, "Adaptive subgradient methods" (2011); moment2 is the sum of
//   squares; L2.
// lion: Chen et al., "Symbolic discovery of optimization algorithms" (2023); decoupled decay.
enum class Optimizer : std::uint8_t { adamw, adam, sgd, adagrad, lion };

// A moment that an optimizer does not use keeps its stored value.
constexpr bool uses_moment1(Optimizer optimizer) { return optimizer != Optimizer::adagrad; }
constexpr bool uses_moment2(Optimizer optimizer) {
    return optimizer != Optimizer::sgd && optimizer != Optimizer::lion;
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
    float step_size = 0;       // learning rate; adamw and adam divide it by 1 - beta1^t
    float root_scale = 1;      // adamw and adam: 1 / sqrt(1 - beta2^t)
    Optimizer optimizer = Optimizer::adamw;
    std::uint64_t random_key = 0;  // the step's, for stochastic rounding
};

inline void adamw_lane(const UpdateScalars& scalars, float gradient, float& master, float& moment1,
                       float& moment2) {
    const float g = gradient * scalars.gradient_scale;
    moment1 = scalars.beta1 * moment1 + scalars.one_minus_beta1 * g;
    moment2 = scalars.beta2 * moment2 + scalars.one_minus_beta2 * (g * g);
    const float root = std::sqrt(moment2) * scalars.root_scale + scalars.epsilon;
    master = master * scalars.decay_factor - scalars.step_size * (moment1 / root);
}

inline void adam_lane(const UpdateScalars& scalars, float gradient, float& master, float& moment1,
                      float& moment2) {
    const float g = gradient * scalars.gradient_scale + scalars.gradient_decay * master;
    moment1 = scalars.beta1 * moment1 + scalars.one_minus_beta1 * g;
    moment2 = scalars.beta2 * moment2 + scalars.one_minus_beta2 * (g * g);
    const float root = std::sqrt(moment2) * scalars.root_scale + scalars.epsilon;
    master = master - scalars.step_size * (moment1 / root);
}

inline void sgd_lane(const UpdateScalars& scalars, float gradient, float& master, float& moment1) {
    const float g = gradient * scalars.gradient_scale + scalars.gradient_decay * master;
    moment1 = scalars.beta1 * moment1 + g;
    master = master - scalars.step_size * moment1;
}

inline void adagrad_lane(const UpdateScalars& scalars, float gradient, float& master,
                         float& moment2) {
    const float g = gradient * scalars.gradient_scale + scalars.gradient_decay * master;
    moment2 = moment2 + g * g;
    master = master - scalars.step_size * (g / (std::sqrt(moment2) + scalars.epsilon));
}

inline void lion_lane(const UpdateScalars& scalars, float gradient, float& master, float& moment1) {
    const float g = gradient * scalars.gradient_scale;
    const float direction = scalars.beta1 * moment1 + scalars.one_minus_beta1 * g;
    const float sign = (direction > 0 ? 1.0F : 0.0F) - (direction < 0 ? 1.0F : 0.0F);
    moment1 = scalars.beta2 * moment1 + scalars.one_minus_beta2 * g;
    master = master * scalars.decay_factor - scalars.step_size * sign;
}

// Updates one parameter. If `optimizer` is a constant, the switch compiles away.
inline void update_lane(Optimizer optimizer, const UpdateScalars& scalars, float gradient,
                        float& master, float& moment1, float& moment2) {
    switch (optimizer) {
        case Optimizer::adamw:
            return adamw_lane(scalars, gradient, master, moment1, moment2);
        case Optimizer::adam:
            return adam_lane(scalars, gradient, master, moment1, moment2);
        case Optimizer::sgd:
            return sgd_lane(scalars, gradient, master, moment1);
        case Optimizer::adagrad:
            return adagrad_lane(scalars, gradient, master, moment2);
        case Optimizer::lion:
            return lion_lane(scalars, gradient, master, moment1);
    }
}

}  // namespace arith
}  // namespace nearstep
