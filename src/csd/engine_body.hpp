// The body of every engine; each engine's source compiles it for its own instruction set.
//
// Everything here has internal linkage, and `flatten` inlines all that is called: a function that
// the linker could share with other sources would carry instructions that another CPU lacks.
#pragma once

#include "base/dtype.hpp"
#include "fpga/kernel/update_lane.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::csd {
namespace {

[[gnu::flatten]] inline void update_run(const fpga::UpdateScalars& scalars,
                                        const float* __restrict gradient, float* __restrict master,
                                        float* __restrict moment1, float* __restrict moment2,
                                        std::size_t count) {
    // A copy, so that the compiler knows that no store changes it.
    const fpga::UpdateScalars fixed = scalars;
    for (std::size_t i = 0; i < count; ++i) {
        fpga::adamw_lane(fixed, gradient[i], master[i], moment1[i], moment2[i]);
    }
}

[[gnu::flatten]] inline void convert_run(const float* __restrict master, Dtype dtype,
                                         void* __restrict to, std::size_t count) {
    if (dtype != Dtype::bf16) {
        convert_from_fp32(master, dtype, to, count);
        return;
    }
    auto* __restrict out = static_cast<std::uint16_t*>(to);
    for (std::size_t i = 0; i < count; ++i) {
        out[i] = to_bf16(master[i]);
    }
}

}  // namespace
}  // namespace nearstep::csd
