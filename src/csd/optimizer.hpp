// What an optimizer keeps.
#pragma once

#include "config/enumerations.hpp"

namespace nearstep::csd {

using arith::Optimizer;
using nearstep::name_of;

// What the moments beside the masters are, as a name: optimizers with the same one can go on from
// each other's state.
const char* moments_of(Optimizer optimizer);

}  // namespace nearstep::csd
