// Eight neighbours in memory, aligned to 16 bytes, as a thread of a kernel moves them.
#pragma once

#include "base/dtype.hpp"

#include <cstdint>

namespace nearstep::memory {

constexpr unsigned kOctet = 8;

__device__ inline void load(const float* from, float (&to)[kOctet]) {
    const float4 low = reinterpret_cast<const float4*>(from)[0];
    const float4 high = reinterpret_cast<const float4*>(from)[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}
__device__ inline void load(const std::uint16_t* from, std::uint16_t (&to)[kOctet]) {
    const uint4 raw = *reinterpret_cast<const uint4*>(from);
    const std::uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        to[i] = static_cast<std::uint16_t>(words[i / 2] >> (16 * (i % 2)));
    }
}

// `to` is memory of the GPU or of the host. __stwb() is a store that the compiler keeps whole. It
// may split the assignment of a uint4 or a float4 into words, which cross the link to the host one
// by one.
__device__ inline void store(const float (&from)[kOctet], float* to) {
    __stwb(reinterpret_cast<float4*>(to), make_float4(from[0], from[1], from[2], from[3]));
    __stwb(reinterpret_cast<float4*>(to) + 1, make_float4(from[4], from[5], from[6], from[7]));
}
__device__ inline void store(const std::uint16_t (&from)[kOctet], std::uint16_t* to) {
    std::uint32_t words[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        words[i] = from[2 * i] | (static_cast<std::uint32_t>(from[2 * i + 1]) << 16U);
    }
    __stwb(reinterpret_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
}

// Elements of a format: float for fp32, the bits of 16-bit values for the others.

__device__ inline float widened(std::uint16_t half, Dtype dtype) {
    return dtype == Dtype::bf16 ? from_bf16(half) : from_fp16(half);
}
__device__ inline float widened(float value, Dtype /*dtype*/) { return value; }

template <typename T>
__device__ inline void load_widened(const T* from, Dtype dtype, float (&to)[kOctet]) {
    T stored[kOctet];
    load(from, stored);
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        to[i] = widened(stored[i], dtype);
    }
}

__device__ inline void round_to(Dtype /*dtype*/, const float (&from)[kOctet], float (&to)[kOctet]) {
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        to[i] = from[i];
    }
}
__device__ inline void round_to(Dtype dtype, const float (&from)[kOctet],
                                std::uint16_t (&to)[kOctet]) {
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        to[i] = dtype == Dtype::bf16 ? to_bf16(from[i]) : to_fp16(from[i]);
    }
}

template <typename T>
__device__ inline void store_rounded(const float (&from)[kOctet], Dtype dtype, T* to) {
    T rounded[kOctet];
    round_to(dtype, from, rounded);
    store(rounded, to);
}

}  // namespace nearstep::memory
