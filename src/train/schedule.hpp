// What changes from step to step.
#pragma once

#include "config/run.hpp"
#include "engine/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::train {

// Rate of step `step` (from 0): linear warm-up over warmup_steps, then a cosine to final_rate_share
// of it at `steps`.
double learning_rate(const config::TrainSettings& settings, std::int64_t step);

// Parameter group of a tensor of so many dimensions (train.decay). With "matrices" those of fewer
// than two, biases and norms, are group 1, which does not decay; else all are group 0.
std::size_t group_of(const config::TrainSettings& settings, std::size_t dimensions);

// What the update of step `step` is told of each group.
std::vector<engine::Hyper> hypers(const config::TrainSettings& settings, std::int64_t step);

}  // namespace nearstep::train
