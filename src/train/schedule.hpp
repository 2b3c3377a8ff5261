// What changes from step to step.
#pragma once

#include "config/run.hpp"
#include "engine/hyper.hpp"

#include <cstdint>

namespace nearstep::train {

// Rate of step `step` (from 0): linear warm-up over warmup_steps, then a cosine to final_rate_share
// of it at `steps`.
double learning_rate(const config::TrainSettings& settings, std::int64_t step);

// What the update of step `step` is told.
engine::Hyper hyper(const config::TrainSettings& settings, std::int64_t step);

}  // namespace nearstep::train
