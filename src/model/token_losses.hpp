// The arguments of the loss's kernel on a GPU. The GPU's compiler reads this, too.
#pragma once

#include "base/dtype.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::model {

// TokenLogits says what each means.
struct TokenLosses {
    void* logits = nullptr;
    Dtype dtype = Dtype::bf16;
    std::size_t columns = 0;
    std::size_t vocabulary = 0;
    const std::int64_t* targets = nullptr;
    float* losses = nullptr;
    bool has_gradient = false;
    float weight = 0;  // of the gradient
};

constexpr unsigned kLossThreads = 512;  // of a block, which computes a token's loss

}  // namespace nearstep::model
