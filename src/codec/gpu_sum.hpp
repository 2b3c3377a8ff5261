// Sums of the dense tiles of several ranks on a GPU, with the bits that the host's have.
#pragma once

#include "base/dtype.hpp"
#include "memory/gpu.hpp"

#include <cstddef>
#include <span>

namespace nearstep::codec {

// Of one sum; a node has no more GPUs.
constexpr std::size_t kMostAddends = 64;

// sums[i] = ((a[i] + b[i]) + c[i]) + ... in fp32, over the addends in their order: `elems` values
// of `dtype` each, widened. All addresses are of the GPU's memory, aligned to 16 bytes; `elems` is
// a multiple of 8. Returns at once: the work is done in the stream's order.
void add_dense(std::span<const std::byte* const> addends, Dtype dtype, std::size_t elems,
               float* sums, const memory::Stream& stream);

}  // namespace nearstep::codec
