#include "csd/engine_table.hpp"

namespace nearstep::csd {

namespace {

bool has_avx2() { return __builtin_cpu_supports("avx2") != 0; }

bool has_avx512() {
    return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

}  // namespace

std::vector<Engine> engines() {
    std::vector<Engine> usable = {scalar_engine};
    if (has_avx2()) {
        usable.push_back(avx2_engine);
    }
    if (has_avx512()) {
        usable.push_back(avx512_engine);
    }
    return usable;
}

const Engine& best_engine() {
    if (has_avx512()) {
        return avx512_engine;
    }
    return has_avx2() ? avx2_engine : scalar_engine;
}

}  // namespace nearstep::csd
