#include "codec/kernels_table.hpp"

namespace nearstep::codec {

std::vector<Kernels> kernels() { return {scalar_kernels}; }

const Kernels& best_kernels() { return scalar_kernels; }

}  // namespace nearstep::codec
