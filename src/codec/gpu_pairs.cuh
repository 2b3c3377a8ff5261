// Sums over blocks of 64 elements of which eight threads, neighbours, have eight each. For .cu
// sources alone.
//
// Thread t of them has the elements 2t, 2t + 1, 2t + 16, 2t + 17, ... So the first steps of the
// sum, which add elements that are 32 and 16 apart, stay in a thread.
#pragma once

#include "codec/gpu_tile.cuh"

namespace nearstep::codec {

constexpr unsigned kPairLanes = 8;
constexpr unsigned kPairStride = 2 * kPairLanes;

// Element i plus i + n/2 of n until one is left, as the format wants it, of term(i) of the eight
// threads' elements; in all of them. Terms are summed in pairs only, so it does not matter which
// comes first.
template <typename Term>
__device__ inline auto sum_of_block(const Term& term) {
    const auto even = (term(0) + term(4)) + (term(2) + term(6));
    const auto odd = (term(1) + term(5)) + (term(3) + term(7));
    // Elements that are 8 apart are 4 threads apart: of them one goes on with the even ones.
    const bool is_high = (threadIdx.x & 4U) != 0;
    auto sum = (is_high ? odd : even) + __shfl_xor_sync(kEveryLane, is_high ? even : odd, 4);
    sum += __shfl_xor_sync(kEveryLane, sum, 2);
    sum += __shfl_xor_sync(kEveryLane, sum, 1);
    return sum + __shfl_xor_sync(kEveryLane, sum, 4);
}

}  // namespace nearstep::codec
