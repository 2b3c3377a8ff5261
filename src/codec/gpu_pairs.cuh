// Sums a block of 64 elements held by eight neighbouring threads, eight elements each. Only .cu
// sources include this.
//
// Thread t holds the elements 2t, 2t + 1, 2t + 16, 2t + 17, ... The first steps add elements that
// are 32 and 16 apart, so they stay within a thread.
#pragma once

#include "codec/gpu_tile.cuh"

namespace nearstep::codec {

constexpr unsigned kPairLanes = 8;
constexpr unsigned kPairStride = 2 * kPairLanes;

// Sums term(i) of the eight threads' elements by halving, as the format requires: element i plus i
// + n/2, until one is left. All threads get the sum. Terms are added in pairs, so the order within
// a pair does not matter.
template <typename Term>
__device__ inline auto sum_of_block(const Term& term) {
    const auto even = (term(0) + term(4)) + (term(2) + term(6));
    const auto odd = (term(1) + term(5)) + (term(3) + term(7));
    // Elements 8 apart are 4 threads apart: one thread of each pair continues with the even sums.
    const bool is_high = (threadIdx.x & 4U) != 0;
    auto sum = (is_high ? odd : even) + __shfl_xor_sync(kEveryLane, is_high ? even : odd, 4);
    sum += __shfl_xor_sync(kEveryLane, sum, 2);
    sum += __shfl_xor_sync(kEveryLane, sum, 1);
    return sum + __shfl_xor_sync(kEveryLane, sum, 4);
}

}  // namespace nearstep::codec
