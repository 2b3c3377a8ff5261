#include "base/instruction_set.hpp"
#include "codec/delta_kernel_table.hpp"

namespace nearstep::codec {

namespace {

// CPUs with vectors of 256 bits have these; a virtual machine may hide them.
bool has_bit_instructions() {
    return __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0;
}

const DeltaKernels& kernels_of(InstructionSet set) {
    switch (set) {
        case InstructionSet::avx512:
            return avx512_delta_kernels;
        case InstructionSet::avx2:
            return avx2_delta_kernels;
        case InstructionSet::scalar:
            break;
    }
    return scalar_delta_kernels;
}

}  // namespace

std::vector<DeltaKernels> delta_kernels() {
    std::vector<DeltaKernels> usable;
    for (const InstructionSet set : instruction_sets()) {
        if (set == InstructionSet::scalar || has_bit_instructions()) {
            usable.push_back(kernels_of(set));
        }
    }
    return usable;
}

const DeltaKernels& best_delta_kernels() {
    static const DeltaKernels best = delta_kernels().back();
    return best;
}

}  // namespace nearstep::codec
