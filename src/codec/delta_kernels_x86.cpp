#include "base/instruction_set.hpp"
#include "codec/delta_kernel_table.hpp"

namespace nearstep::codec {

namespace {

// CPUs with 256-bit vectors have BMI2 and POPCNT; a virtual machine may hide them.
bool has_bit_instructions() {
    return __builtin_cpu_supports("bmi2") != 0 && __builtin_cpu_supports("popcnt") != 0;
}

std::vector<InstructionSet> usable_sets() {
    return has_bit_instructions() ? instruction_sets() : std::vector{InstructionSet::scalar};
}

}  // namespace

const std::vector<DeltaKernels>& delta_kernels() {
    static const std::vector<DeltaKernels> usable =
        variants_for(usable_sets(), scalar_delta_kernels, avx2_delta_kernels, avx512_delta_kernels);
    return usable;
}

}  // namespace nearstep::codec
