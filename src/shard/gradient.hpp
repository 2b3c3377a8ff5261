// A block's gradient as a client hands it over. The engine's face, its step and the exchange name
// it.
#pragma once

#include "base/dtype.hpp"

#include <cstddef>
#include <span>

namespace nearstep::shard {

// Neighbouring values, aligned to their size: in host memory or, if the rank's gradients are
// encoded on its GPU, there.
struct GradientPart {
    const void* values = nullptr;  // null: zeros
    Dtype dtype = Dtype::fp32;
    std::size_t elems = 0;
};

// The parts follow each other in the parameter vector. Each value counts as itself times `factor`,
// in fp32.
struct Gradient {
    std::span<const GradientPart> parts = {};
    float factor = 1;
};

}  // namespace nearstep::shard
