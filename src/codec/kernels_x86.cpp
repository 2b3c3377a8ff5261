#include "base/instruction_set.hpp"
#include "codec/kernels_table.hpp"

namespace nearstep::codec {

const std::vector<Kernels>& kernels() {
    static const std::vector<Kernels> usable =
        variants_for(instruction_sets(), scalar_kernels, avx2_kernels, avx512_kernels);
    return usable;
}

}  // namespace nearstep::codec
