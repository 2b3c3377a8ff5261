#include "codec/delta_kernel_table.hpp"

namespace nearstep::codec {

std::vector<DeltaKernels> delta_kernels() { return {scalar_delta_kernels}; }

const DeltaKernels& best_delta_kernels() { return scalar_delta_kernels; }

}  // namespace nearstep::codec
