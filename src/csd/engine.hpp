// The engines of emulated devices: AdamW on a host core, by its instruction set.
#pragma once

#include "base/dtype.hpp"
#include "fpga/kernel/update_lane.hpp"

#include <cstddef>
#include <vector>

namespace nearstep::csd {

// AdamW of `count` elements in place. The arrays do not overlap; any alignment, any count.
using UpdateRun = void (*)(const fpga::UpdateScalars& scalars, const float* gradient, float* master,
                           float* moment1, float* moment2, std::size_t count);

// New masters in the parameters' format; `to` is aligned for it.
using ConvertRun = void (*)(const float* master, Dtype dtype, void* to, std::size_t count);

// All engines give the same bits (those of NaN payloads excepted). Stateless; any thread may call.
struct Engine {
    const char* name;
    UpdateRun update;
    ConvertRun convert;
};

// Those that this CPU can run, the slowest first: "scalar", "avx2", "avx512".
std::vector<Engine> engines();

// The fastest of them.
const Engine& best_engine();

}  // namespace nearstep::csd
