// Each thread sums eight elements over all addends.
#include "codec/gpu_sum.hpp"
#include "codec/gpu_tile.cuh"
#include "memory/cuda_call.hpp"

#include <algorithm>

namespace nearstep::codec {

namespace {

constexpr unsigned kThreads = 256;

struct Addends {
    const std::byte* at[kMostAddends];
    unsigned count;
};

template <Dtype kDtype>
__device__ inline void load_octet(const std::byte* from, std::size_t octet,
                                  float (&values)[kOctet]) {
    if (kDtype == Dtype::fp32) {
        load_floats(reinterpret_cast<const float*>(from) + octet * kOctet, values);
        return;
    }
    const uint4 halves = reinterpret_cast<const uint4*>(from)[octet];
    const std::uint32_t words[4] = {halves.x, halves.y, halves.z, halves.w};
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        const auto low = static_cast<std::uint16_t>(words[i] & 0xFFFFU);
        const auto high = static_cast<std::uint16_t>(words[i] >> 16U);
        values[2 * i] = kDtype == Dtype::bf16 ? from_bf16(low) : from_fp16(low);
        values[2 * i + 1] = kDtype == Dtype::bf16 ? from_bf16(high) : from_fp16(high);
    }
}

template <Dtype kDtype>
__global__ void __launch_bounds__(kThreads)
    add(const Addends addends, std::size_t octets, float* sums) {
    const std::size_t octet = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (octet >= octets) {
        return;
    }
    float sum[kOctet];
    load_octet<kDtype>(addends.at[0], octet, sum);
    for (unsigned a = 1; a < addends.count; ++a) {
        float value[kOctet];
        load_octet<kDtype>(addends.at[a], octet, value);
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            sum[i] += value[i];
        }
    }
    store_floats(sum, sums + octet * kOctet);
}

}  // namespace

void add_dense(std::span<const std::byte* const> addends, Dtype dtype, std::size_t elems,
               float* sums, const memory::Stream& stream) {
    expects(!addends.empty() && addends.size() <= kMostAddends, "a sum has 1 to 64 addends");
    expects(elems % kOctet == 0, "elements are added eight at a time");
    if (elems == 0) {
        return;
    }
    Addends list{};
    std::copy(addends.begin(), addends.end(), list.at);
    list.count = static_cast<unsigned>(addends.size());
    const std::size_t octets = elems / kOctet;
    const auto blocks = static_cast<unsigned>((octets + kThreads - 1) / kThreads);
    if (dtype == Dtype::fp32) {
        add<Dtype::fp32><<<blocks, kThreads, 0, stream.handle()>>>(list, octets, sums);
    } else if (dtype == Dtype::bf16) {
        add<Dtype::bf16><<<blocks, kThreads, 0, stream.handle()>>>(list, octets, sums);
    } else {
        add<Dtype::fp16><<<blocks, kThreads, 0, stream.handle()>>>(list, octets, sums);
    }
    memory::check_launch();
}

}  // namespace nearstep::codec
