// The variants as constants. They are data, not functions: naming one runs no code of its
// instruction set.
#pragma once

#include "codec/kernels.hpp"

namespace nearstep::codec {

extern const Kernels scalar_kernels;
extern const Kernels avx2_kernels;    // x86 only
extern const Kernels avx512_kernels;  // x86 only

}  // namespace nearstep::codec
