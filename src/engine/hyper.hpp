// What devices are told of a step's optimizer.
#pragma once

#include "csd/step_scalars.hpp"
#include "engine/layout.hpp"

#include <cstdint>
#include <span>

namespace nearstep::engine {

// Factor that brings a gradient of this norm to at most clip_norm; 1 if clip_norm is 0.
double clip_factor(double norm, double clip_norm);

// Of update number `update` (from 1), by group; gradients are multiplied by `gradient_scale`.
// `seed`: of the run, for rounding.
csd::StepScalars step_scalars(std::span<const Hyper> groups, std::uint64_t seed,
                              std::int64_t update, double gradient_scale);

}  // namespace nearstep::engine
