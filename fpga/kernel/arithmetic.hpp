// The arithmetic of src/arith by the names that the kernels use.
// C++14, no exceptions, no containers.
#pragma once

#include "arith/gradient_lane.hpp"
#include "arith/state_lane.hpp"
#include "arith/update_lane.hpp"
#include "arith/xxh3_keys.hpp"

// One inside the other, because C++14 cannot write them as one.
namespace nearstep {  // NOLINT(modernize-concat-nested-namespaces)
namespace fpga {

using namespace arith;

// These have further overloads here, which would hide them.
using arith::has_codes;
using arith::uses_moment1;
using arith::uses_moment2;

}  // namespace fpga
}  // namespace nearstep
