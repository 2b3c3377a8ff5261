// The loss of logits on a GPU. One thread block reads a token's logits twice, the second time
// mostly from the L2 cache. Started by loss_kernel.cpp.
#include "memory/gpu_octets.cuh"
#include "model/token_losses.hpp"

#include <cmath>

namespace nearstep::model {

using memory::kOctet;

constexpr unsigned kThreads = kLossThreads;
constexpr unsigned kWarp = 32;
constexpr unsigned kWarps = kThreads / kWarp;
constexpr unsigned kEveryLane = 0xFFFFFFFFU;

// A sum of exponentials so far: `sum` times the exponential of `most`.
struct LogSum {
    float most = -INFINITY;
    float sum = 0;

    __device__ void add(const LogSum& other) {
        const float larger = fmaxf(most, other.most);
        if (larger > -INFINITY) {
            sum = sum * expf(most - larger) + other.sum * expf(other.most - larger);
        } else {
            sum += other.sum;  // NaN stays
        }
        most = larger;
    }
};

// Adds the values of a thread block. All its threads call it; the order of additions is fixed.
__device__ inline LogSum of_block(LogSum mine) {
    __shared__ LogSum of_warp[kWarps];
    const auto of_all_lanes = [](LogSum& sum) {
        for (unsigned step = kWarp / 2; step > 0; step /= 2) {
            const LogSum other{__shfl_xor_sync(kEveryLane, sum.most, step),
                               __shfl_xor_sync(kEveryLane, sum.sum, step)};
            sum.add(other);
        }
    };
    of_all_lanes(mine);
    if (threadIdx.x % kWarp == 0) {
        of_warp[threadIdx.x / kWarp] = mine;
    }
    __syncthreads();
    LogSum all = threadIdx.x % kWarp < kWarps ? of_warp[threadIdx.x % kWarp] : LogSum();
    of_all_lanes(all);
    return all;
}

template <typename T>
__global__ void cross_entropies(const TokenLosses of) {
    T* const row = static_cast<T*>(of.logits) + blockIdx.x * of.columns;
    const std::size_t octets = of.columns / kOctet;
    LogSum mine;
    for (std::size_t octet = threadIdx.x; octet < octets; octet += kThreads) {
        float logits[kOctet];
        memory::load_widened(row + octet * kOctet, of.dtype, logits);
        LogSum here;
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            logits[i] = octet * kOctet + i < of.vocabulary ? logits[i] : -INFINITY;
            here.most = fmaxf(here.most, logits[i]);
        }
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            here.sum += logits[i] == -INFINITY ? 0.0F : expf(logits[i] - here.most);
        }
        mine.add(here);
    }
    const LogSum all = of_block(mine);
    const float log_sum = logf(all.sum);
    const auto target = static_cast<std::size_t>(of.targets[blockIdx.x]);
    if (threadIdx.x == 0) {
        of.losses[blockIdx.x] = log_sum - (memory::widened(row[target], of.dtype) - all.most);
    }
    if (!of.has_gradient) {
        return;
    }
    __syncthreads();  // the target's logit has been read
    for (std::size_t octet = threadIdx.x; octet < octets; octet += kThreads) {
        float logits[kOctet];
        memory::load_widened(row + octet * kOctet, of.dtype, logits);
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            const std::size_t column = octet * kOctet + i;
            const float share = expf(logits[i] - all.most - log_sum);
            const float wanted = column == target ? 1.0F : 0.0F;
            logits[i] = column < of.vocabulary ? (share - wanted) * of.weight : 0.0F;
        }
        memory::store_rounded(logits, of.dtype, row + octet * kOctet);
    }
}

}  // namespace nearstep::model
