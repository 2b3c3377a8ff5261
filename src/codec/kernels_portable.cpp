#include "codec/kernels_table.hpp"

namespace nearstep::codec {

const std::vector<Kernels>& kernels() {
    static const std::vector<Kernels> usable = {scalar_kernels};
    return usable;
}

}  // namespace nearstep::codec
