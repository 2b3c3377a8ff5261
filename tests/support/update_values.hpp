// Values at the edges of fp32, and scalars, for tests of engines and kernels.
#pragma once

#include "arith/state_lane.hpp"
#include "arith/update_lane.hpp"
#include "base/dtype.hpp"

#include <array>
#include <cstddef>
#include <limits>

namespace nearstep {

inline constexpr std::array kStateFormats = {arith::StateFormat::fp32, arith::StateFormat::bf16,
                                             arith::StateFormat::q8, arith::StateFormat::compact};

}  // namespace nearstep

namespace nearstep::arith {

inline constexpr std::array<float, 14> kEdges = {0.0F,
                                                 -0.0F,
                                                 1.0F,
                                                 -1.0F,
                                                 std::numeric_limits<float>::denorm_min(),
                                                 -std::numeric_limits<float>::denorm_min(),
                                                 1e-40F,
                                                 std::numeric_limits<float>::min(),
                                                 std::numeric_limits<float>::max(),
                                                 -std::numeric_limits<float>::max(),
                                                 std::numeric_limits<float>::infinity(),
                                                 -std::numeric_limits<float>::infinity(),
                                                 std::numeric_limits<float>::quiet_NaN(),
                                                 3e-20F};
inline constexpr std::size_t kEdgeTiles = 11;  // 14^3 blocks

inline UpdateScalars sane_scalars(Optimizer optimizer) {
    UpdateScalars scalars;
    scalars.optimizer = optimizer;
    scalars.gradient_scale = 0.37F;
    scalars.decay_factor = 1 - 1e-4F;
    scalars.gradient_decay = 0.01F;
    scalars.step_size = 1.9e-3F;
    scalars.root_scale = 1.4F;
    scalars.random_key = 77;
    return scalars;
}

// The type for one case of a sweep: over all cases every optimizer and every format meets every
// type.
inline Dtype dtype_in_turn(Optimizer optimizer, StateFormat format, std::size_t turn = 0) {
    constexpr std::array kTypes = {Dtype::bf16, Dtype::fp16, Dtype::fp32};
    return kTypes.at(
        (static_cast<std::size_t>(optimizer) + static_cast<std::size_t>(format) + turn) %
        kTypes.size());
}

}  // namespace nearstep::arith
