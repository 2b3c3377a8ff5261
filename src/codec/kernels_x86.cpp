#include "base/instruction_set.hpp"
#include "codec/kernels_table.hpp"

namespace nearstep::codec {

namespace {

const Kernels& kernels_of(InstructionSet set) {
    switch (set) {
        case InstructionSet::avx512:
            return avx512_kernels;
        case InstructionSet::avx2:
            return avx2_kernels;
        case InstructionSet::scalar:
            break;
    }
    return scalar_kernels;
}

}  // namespace

std::vector<Kernels> kernels() {
    std::vector<Kernels> usable;
    for (const InstructionSet set : instruction_sets()) {
        usable.push_back(kernels_of(set));
    }
    return usable;
}

const Kernels& best_kernels() { return kernels_of(instruction_sets().back()); }

}  // namespace nearstep::codec
