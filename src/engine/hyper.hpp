// The optimizer values that devices receive for a step.
#pragma once

#include "csd/step_scalars.hpp"
#include "engine/layout.hpp"

#include <cstdint>
#include <span>

namespace nearstep::engine {

// Factor that scales a gradient of norm `norm` down to at most clip_norm; 1 if clip_norm is 0.
double clip_factor(double norm, double clip_norm);

// Scalars of update number `update` (from 1), by group. Gradients are multiplied by
// `gradient_scale`. `seed` is the run's, for rounding.
csd::StepScalars step_scalars(std::span<const Hyper> groups, std::uint64_t seed,
                              std::int64_t update, double gradient_scale);

}  // namespace nearstep::engine
