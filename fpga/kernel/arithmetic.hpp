// The arithmetic of src/arith under the names that the kernels use.
// C++14, no exceptions, no containers.
#pragma once

#include "arith/delta_lane.hpp"
#include "arith/gradient_lane.hpp"
#include "arith/state_lane.hpp"
#include "arith/update_lane.hpp"

namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

using namespace arith;

// Overloads in this namespace would hide these.
using arith::has_codes;
using arith::uses_moment1;
using arith::uses_moment2;

}  // namespace fpga
}  // namespace nearstep
