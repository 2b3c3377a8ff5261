// The published optimizers in double precision: the reference for the engines.
#pragma once

#include "csd/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace nearstep::csd {

using arith::UpdateScalars;

// One unit in the last place for values of this magnitude.
inline double ulp(double value) {
    const auto magnitude = static_cast<float>(std::abs(value));
    return static_cast<double>(std::nextafter(magnitude, std::numeric_limits<float>::infinity())) -
           static_cast<double>(magnitude);
}

// State of one parameter in double precision, and the largest term of each sum.
struct Reference {
    double master = 0;
    double moment1 = 0;
    double moment2 = 0;
    // Largest terms of the first moment and of the gradient with its decay.
    double largest1 = 0;
    double largest_gradient = 0;
};

// The settings of a parameter group.
struct Hyper {
    Optimizer optimizer = Optimizer::adamw;
    double rate = 1e-3;
    double decay = 0.1;
    double epsilon = 1e-8;
    double beta1 = 0.9;
    double beta2 = 0.95;
};

// The published update for step number `step`.
inline Reference published(const Hyper& hyper, const Reference& old, double gradient, int step) {
    const Optimizer optimizer = hyper.optimizer;
    Reference next = old;
    const bool is_l2 = optimizer == Optimizer::adam || optimizer == Optimizer::sgd ||
                       optimizer == Optimizer::adagrad;
    const double g = gradient + (is_l2 ? hyper.decay * old.master : 0);
    next.largest_gradient =
        std::max(std::abs(gradient), is_l2 ? std::abs(hyper.decay * old.master) : 0);
    const double beta = optimizer == Optimizer::lion ? hyper.beta2 : hyper.beta1;
    const double fresh = optimizer == Optimizer::sgd ? g : (1 - beta) * g;
    if (optimizer != Optimizer::adagrad) {
        next.moment1 = beta * old.moment1 + fresh;
        next.largest1 = std::max(std::abs(beta * old.moment1), std::abs(fresh));
    }
    const double decayed = old.master * (1 - hyper.rate * hyper.decay);
    switch (optimizer) {
        case Optimizer::adamw:
        case Optimizer::adam: {
            next.moment2 = hyper.beta2 * old.moment2 + (1 - hyper.beta2) * g * g;
            const double mean = next.moment1 / (1 - std::pow(hyper.beta1, step));
            const double square = next.moment2 / (1 - std::pow(hyper.beta2, step));
            next.master = (is_l2 ? old.master : decayed) -
                          hyper.rate * mean / (std::sqrt(square) + hyper.epsilon);
            break;
        }
        case Optimizer::sgd:
            next.master = old.master - hyper.rate * next.moment1;
            break;
        case Optimizer::adagrad:
            next.moment2 = old.moment2 + g * g;
            next.master = old.master - hyper.rate * g / (std::sqrt(next.moment2) + hyper.epsilon);
            break;
        case Optimizer::lion: {
            const double direction = hyper.beta1 * old.moment1 + (1 - hyper.beta1) * g;
            next.master = decayed - hyper.rate * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
            break;
        }
    }
    return next;
}

inline UpdateScalars scalars_of_step(const Hyper& hyper, int step) {
    const Optimizer optimizer = hyper.optimizer;
    const bool is_adam = optimizer == Optimizer::adamw || optimizer == Optimizer::adam;
    UpdateScalars scalars;
    scalars.optimizer = optimizer;
    scalars.beta1 = static_cast<float>(hyper.beta1);
    scalars.one_minus_beta1 = static_cast<float>(1 - hyper.beta1);
    scalars.beta2 = static_cast<float>(hyper.beta2);
    scalars.one_minus_beta2 = static_cast<float>(1 - hyper.beta2);
    scalars.epsilon = static_cast<float>(hyper.epsilon);
    scalars.decay_factor = static_cast<float>(1 - hyper.rate * hyper.decay);
    scalars.gradient_decay = static_cast<float>(hyper.decay);
    scalars.step_size =
        static_cast<float>(is_adam ? hyper.rate / (1 - std::pow(hyper.beta1, step)) : hyper.rate);
    scalars.root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(hyper.beta2, step)));
    return scalars;
}

}  // namespace nearstep::csd
