// Chooses the kernels for this CPU. Called by codecs, deltas and the gradient scatter.
#include "codec/codec_kernels.hpp"

#include "base/instruction_set.hpp"

namespace nearstep::codec {

const std::vector<Kernels>& kernels() {
    static const std::vector<Kernels> usable = [] {
        if constexpr (kHasX86Sets) {
            return variants_for(instruction_sets(), scalar_kernels, avx2_kernels, avx512_kernels);
        } else {
            return std::vector{scalar_kernels};
        }
    }();
    return usable;
}

}  // namespace nearstep::codec
