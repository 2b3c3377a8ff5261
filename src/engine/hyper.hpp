// What an update is told of the optimizer.
#pragma once

#include "arith/update_lane.hpp"
#include "csd/optimizer.hpp"
#include "csd/step_scalars.hpp"

#include <cstdint>
#include <span>

namespace nearstep::engine {

// Of a parameter group, as PyTorch names them; `rate` is the learning rate, `decay` the weight
// decay.
struct Hyper {
    csd::Optimizer optimizer = csd::Optimizer::adamw;
    double rate = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    double decay = 0;
    bool is_skipped = false;  // no rank has a gradient: masters and moments stay as they are
};

// Factor that brings a gradient of this norm to at most clip_norm; 1 if clip_norm is 0.
double clip_factor(double norm, double clip_norm);

// Of update number `update` (from 1), by group; gradients are multiplied by `gradient_scale`.
// `seed`: of the run, for rounding.
csd::StepScalars step_scalars(std::span<const Hyper> groups, std::uint64_t seed,
                              std::int64_t update, double gradient_scale);

}  // namespace nearstep::engine
