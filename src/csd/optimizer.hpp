// Optimizers by name.
#pragma once

#include "arith/update_lane.hpp"

#include <string>

namespace nearstep::csd {

using arith::Optimizer;

// "adamw", "adam", "sgd", "adagrad", "lion".
const char* name_of(Optimizer optimizer);

// Throws ConfigError naming the five.
Optimizer parse_optimizer(const std::string& name);

}  // namespace nearstep::csd
