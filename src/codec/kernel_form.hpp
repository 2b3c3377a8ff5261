// Describes a payload to kernels of GPUs and cards. The GPU's compiler reads this, too.
#pragma once

#include "arith/gradient_lane.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {

// Tells a kernel the payload format.
struct KernelForm {
    arith::GradientCodec codec = arith::GradientCodec::dense_bf16;
    std::uint32_t kept = 0;  // topk: elements kept per tile; else 0
};

// A sum of squares has a fixed order and can be vectorised.
constexpr std::size_t kSquareSums = 8;

}  // namespace nearstep::codec
