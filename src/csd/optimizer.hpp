// Optimizers by name.
#pragma once

#include "arith/update_lane.hpp"

#include <string>

namespace nearstep::csd {

using arith::Optimizer;

// "adamw", "adam", "sgd", "adagrad", "lion".
const char* name_of(Optimizer optimizer);

// What the moments beside the masters are, as a name: optimizers with the same one can go on from
// each other's state.
const char* moments_of(Optimizer optimizer);

// Throws ConfigError naming the five.
Optimizer parse_optimizer(const std::string& name);

}  // namespace nearstep::csd
