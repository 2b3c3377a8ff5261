// Asks the CPU for its vector instructions. Called by codec/codec_kernels.cpp and
// csd/update_engine.cpp.
#include "base/instruction_set.hpp"

namespace nearstep {

std::vector<InstructionSet> instruction_sets() {
    std::vector<InstructionSet> usable = {InstructionSet::scalar};
#ifdef __x86_64__
    // CPUs with 256-bit vectors have BMI2 and POPCNT; a virtual machine may hide them.
    if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("bmi2") == 0 ||
        __builtin_cpu_supports("popcnt") == 0) {
        return usable;
    }
    usable.push_back(InstructionSet::avx2);
    if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
        __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
        usable.push_back(InstructionSet::avx512);
    }
#endif
    return usable;
}

}  // namespace nearstep
