// Names the moments that each optimizer keeps.
#pragma once

#include "config/enumerations.hpp"

namespace nearstep::csd {

using arith::Optimizer;
using nearstep::name_of;

// Returns a name for what the moments beside the masters are. Optimizers with the same name can go
// on from each other's state.
const char* moments_of(Optimizer optimizer);

}  // namespace nearstep::csd
