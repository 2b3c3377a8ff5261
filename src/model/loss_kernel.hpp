// The kernel behind cross_entropy() on a GPU.
#pragma once

#include "base/dtype.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace nearstep::memory {
class Stream;
}

namespace nearstep::model {

// All arrays are in GPU memory.
struct TokenLogits {
    void* logits = nullptr;  // [tokens, columns] of `dtype`, aligned to 16 bytes
    Dtype dtype = Dtype::bf16;
    std::size_t tokens = 0;
    std::size_t columns = 0;     // a multiple of 8
    std::size_t vocabulary = 0;  // columns from here on do not count, and have no gradient
    const std::int64_t* targets = nullptr;
    float* losses = nullptr;                // [tokens]; each token's cross entropy, in nats
    std::optional<double> gradient_weight;  // given: the logits become their gradient times this
};

// Computes the loss and its gradient. Returns at once; the work runs in stream order. The same
// arguments give the same bits.
void cross_entropy_on_gpu(const TokenLogits& of, const memory::Stream& stream);

}  // namespace nearstep::model
