#include "codec/delta_kernel_table.hpp"

namespace nearstep::codec {

const std::vector<DeltaKernels>& delta_kernels() {
    static const std::vector<DeltaKernels> usable = {scalar_delta_kernels};
    return usable;
}

}  // namespace nearstep::codec
