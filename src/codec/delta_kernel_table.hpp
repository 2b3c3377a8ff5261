// The kernels as constants. They are data, not functions: naming one runs no code of its
// instruction set.
#pragma once

#include "codec/delta_kernels.hpp"

namespace nearstep::codec {

extern const DeltaKernels scalar_delta_kernels;
extern const DeltaKernels avx2_delta_kernels;    // x86 only
extern const DeltaKernels avx512_delta_kernels;  // x86 only

}  // namespace nearstep::codec
