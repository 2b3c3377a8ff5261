#include "codec/delta_kernel_table.hpp"

namespace nearstep::codec {

namespace {

bool has_avx2() {
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("popcnt") != 0 &&
           __builtin_cpu_supports("bmi2") != 0;
}

bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
           __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
           __builtin_cpu_supports("avx512vl") != 0;
}

}  // namespace

std::vector<DeltaKernels> delta_kernels() {
    std::vector<DeltaKernels> usable = {scalar_delta_kernels};
    if (has_avx2()) {
        usable.push_back(avx2_delta_kernels);
    }
    if (has_avx512()) {
        usable.push_back(avx512_delta_kernels);
    }
    return usable;
}

const DeltaKernels& best_delta_kernels() {
    if (has_avx512()) {
        return avx512_delta_kernels;
    }
    return has_avx2() ? avx2_delta_kernels : scalar_delta_kernels;
}

}  // namespace nearstep::codec
