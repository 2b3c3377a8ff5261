// Conversions, sums and digests of arrays in GPU memory. Started by gpu.cpp.
#include "memory/gpu_octets.cuh"

namespace nearstep::memory {

constexpr unsigned kThreads = 256;

// Elements of `dtype` in GPU memory: T is float, or the bits of 16-bit values.
template <typename T>
struct Array {
    const T* elems;
    Dtype dtype;

    __device__ float at(std::size_t i) const { return widened(elems[i], dtype); }
    __device__ void octet(std::size_t first, float (&to)[kOctet]) const {
        load_widened(elems + first, dtype, to);
    }
};

template <typename T>
struct Scaled {
    Array<T> from;
    float factor;

    __device__ float at(std::size_t i) const { return factor * from.at(i); }
    __device__ void octet(std::size_t first, float (&to)[kOctet]) const {
        from.octet(first, to);
#pragma unroll
        for (float& value : to) {
            value *= factor;
        }
    }
};

template <typename T, typename U>
struct Sum {
    Array<T> one;
    Array<U> other;

    __device__ float at(std::size_t i) const { return one.at(i) + other.at(i); }
    __device__ void octet(std::size_t first, float (&to)[kOctet]) const {
        float addends[kOctet];
        one.octet(first, to);
        other.octet(first, addends);
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            to[i] += addends[i];
        }
    }
};

// Writes the values by octets if all arrays are aligned, and what remains one by one.
template <typename Values>
__device__ inline void write(float* to, const Values& values, std::size_t count, bool is_aligned) {
    const std::size_t step = std::size_t{gridDim.x} * kThreads;
    const std::size_t thread = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
    const std::size_t octets = is_aligned ? count / kOctet : 0;
    for (std::size_t octet = thread; octet < octets; octet += step) {
        float result[kOctet];
        values.octet(octet * kOctet, result);
        store(result, to + octet * kOctet);
    }
    for (std::size_t i = octets * kOctet + thread; i < count; i += step) {
        to[i] = values.at(i);
    }
}

template <typename T>
__global__ void convert(float* to, const T* from, Dtype dtype, float factor, std::size_t count,
                        bool is_aligned) {
    write(to, Scaled<T>{Array<T>{from, dtype}, factor}, count, is_aligned);
}

template <typename T, typename U>
__global__ void add(float* sums, const T* one, Dtype one_dtype, const U* other, Dtype other_dtype,
                    std::size_t count, bool is_aligned) {
    const Sum<T, U> sum{Array<T>{one, one_dtype}, Array<U>{other, other_dtype}};
    write(sums, sum, count, is_aligned);
}

// Steele and others, "Fast splittable pseudorandom number generators" (2014): its last mix.
__device__ inline std::uint64_t mixed(std::uint64_t word, std::uint64_t place) {
    word ^= (place + 1) * 0x9E3779B97F4A7C15U;
    word = (word ^ (word >> 30U)) * 0xBF58476D1CE4E5B9U;
    word = (word ^ (word >> 27U)) * 0x94D049BB133111EBU;
    return word ^ (word >> 31U);
}

// The sum of all words, each mixed with its place, so that their order in time has no effect.
__global__ void add_up(const std::uint16_t* words, std::size_t count, bool is_aligned,
                       std::uint64_t* digest) {
    constexpr std::size_t kWordsOfTwo = 8;
    const std::size_t step = std::size_t{gridDim.x} * kThreads;
    const std::size_t thread = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
    const std::size_t pairs = is_aligned ? count / kWordsOfTwo : 0;
    const auto* pair = reinterpret_cast<const ulonglong2*>(words);
    std::uint64_t sum = 0;
    for (std::size_t i = thread; i < pairs; i += step) {
        sum += mixed(pair[i].x, 2 * i) + mixed(pair[i].y, 2 * i + 1);
    }
    for (std::size_t i = pairs * kWordsOfTwo + thread; i < count; i += step) {
        sum += mixed(words[i], count + i);
    }
    for (unsigned distance = 16; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(0xFFFFFFFFU, sum, distance);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(digest), sum);
    }
}

}  // namespace nearstep::memory
