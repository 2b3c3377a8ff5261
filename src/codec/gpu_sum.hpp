// Sums the dense tiles of several ranks on a GPU, with the same bits as on the host.
#pragma once

#include "base/dtype.hpp"
#include "memory/gpu.hpp"

#include <cstddef>
#include <span>

namespace nearstep::codec {

// Most addends in one sum; a node has no more GPUs.
constexpr std::size_t kMostAddends = 64;

// sums[i] = ((a[i] + b[i]) + c[i]) + ... in fp32, over the addends in order. Each addend holds
// `elems` values of `dtype`. All addresses are in GPU memory, aligned to 16 bytes; `elems` is a
// multiple of 8. Returns at once; the work runs in stream order.
void add_dense(std::span<const std::byte* const> addends, Dtype dtype, std::size_t elems,
               float* sums, const memory::Stream& stream);

}  // namespace nearstep::codec
