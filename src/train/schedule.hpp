// Computes the values that change from step to step.
#pragma once

#include "config/run_settings.hpp"
#include "nearstep/layout.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace nearstep::train {

// Learning rate of step `step` (from 0): linear warm-up over warmup_steps, then a cosine down to
// final_rate_share of the peak at `steps`.
double learning_rate(const config::TrainSettings& settings, std::int64_t step);

// Parameter group of a tensor with `dimensions` dimensions (train.decay). With "matrices", tensors
// with fewer than two (biases and norms) are group 1, which does not decay; all others are group 0.
std::size_t group_of(const config::TrainSettings& settings, std::size_t dimensions);

// Hyperparameters of each group for the update of step `step`.
std::vector<engine::Hyper> hypers(const config::TrainSettings& settings, std::int64_t step);

}  // namespace nearstep::train
