// The optimizer values that devices receive for a step.
#pragma once

#include "csd/step_scalars.hpp"
#include "engine/layout.hpp"

#include <cstdint>
#include <span>

namespace nearstep::engine {

// Factor that scales a gradient of norm `norm` down to at most clip_norm; 1 if clip_norm is 0.
double clip_factor(double norm, double clip_norm);

// Tensors that share their scalars in a step.
struct ScalarSet {
    Hyper hyper = {};
    std::int64_t update = 1;  // number of the tensors' own update, from 1: corrects Adam's bias
};

// By how much the correction of bias scales a step, if epsilon is small. For Adam and AdamW.
double bias_correction(const Hyper& hyper, std::int64_t update);

// Scalars by set. `update`: number of the engine's update, for rounding with the run's `seed`.
// Gradients are multiplied by `gradient_scale`.
csd::StepScalars step_scalars(std::span<const ScalarSet> sets, std::uint64_t seed,
                              std::int64_t update, double gradient_scale);

}  // namespace nearstep::engine
