// What an update is told of the optimizer.
#pragma once

#include "arith/update_lane.hpp"
#include "csd/optimizer.hpp"

#include <cstdint>

namespace nearstep::engine {

// As PyTorch names them; `rate` is the learning rate, `decay` the weight decay.
struct Hyper {
    csd::Optimizer optimizer = csd::Optimizer::adamw;
    double rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double decay = 0;
};

// Factor that brings a gradient of this norm to at most clip_norm; 1 if clip_norm is 0.
double clip_factor(double norm, double clip_norm);

// Scalars of update number `update` (from 1); gradients are multiplied by `gradient_scale`. `seed`:
// of the run, for rounding.
arith::UpdateScalars update_scalars(const Hyper& hyper, std::uint64_t seed, std::int64_t update,
                                    double gradient_scale);

}  // namespace nearstep::engine
