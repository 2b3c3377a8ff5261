// The update of state in the GPU's memory or in pinned host memory, which the kernel reads and
// writes over the GPU's link. A warp updates a block of 256 elements, eight neighbours per thread.
// The link is the limit, so a few thread blocks suffice; the others' work keeps the rest of the
// GPU.
//
// Started by gpu_kernels.cpp.
#include "csd/gpu_state.hpp"
#include "memory/gpu_octets.cuh"
#include "shard/tile.hpp"

namespace nearstep::csd {

using arith::GradientCodec;
using arith::kBlockElems;
using arith::Optimizer;
using arith::Stored;
using memory::kOctet;
using memory::load;
using memory::store;
using shard::kTileElems;

constexpr unsigned kThreads = kUpdateThreads;
constexpr unsigned kWarp = 32;
constexpr unsigned kEveryLane = 0xFFFFFFFFU;
static_assert(kOctet == kBlockElems / kWarp, "a warp updates a block");

// --- Eight neighbours in memory ------------------------------------------------------------------

__device__ inline void load(const std::uint8_t* from, std::uint8_t (&to)[kOctet]) {
    const uint2 raw = *reinterpret_cast<const uint2*>(from);
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        to[i] = static_cast<std::uint8_t>((i < 4 ? raw.x : raw.y) >> (8 * (i % 4)));
    }
}
__device__ inline void load(const std::int8_t* from, std::int8_t (&to)[kOctet]) {
    std::uint8_t raw[kOctet];
    load(reinterpret_cast<const std::uint8_t*>(from), raw);
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        to[i] = static_cast<std::int8_t>(raw[i]);
    }
}

__device__ inline void store(const std::uint8_t (&from)[kOctet], std::uint8_t* to) {
    std::uint32_t words[2] = {0, 0};
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        words[i / 4] |= static_cast<std::uint32_t>(from[i]) << (8 * (i % 4));
    }
    __stwb(reinterpret_cast<uint2*>(to), make_uint2(words[0], words[1]));
}
__device__ inline void store(const std::int8_t (&from)[kOctet], std::int8_t* to) {
    std::uint8_t raw[kOctet];
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        raw[i] = static_cast<std::uint8_t>(from[i]);
    }
    store(raw, reinterpret_cast<std::uint8_t*>(to));
}

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(std::uint16_t half) { return from_bf16(half); }

__device__ inline void narrow(float value, std::uint32_t, float& to) { to = value; }
__device__ inline void narrow(float value, std::uint32_t random, std::uint16_t& to) {
    to = arith::round_to_bf16(value, random);
}

// --- The gradient --------------------------------------------------------------------------------

// Elements [at, at + 8) of a tile; `at` is a multiple of 8.
struct Octet {
    unsigned at;
    __device__ unsigned piece() const { return at / arith::kPieceElems; }
    __device__ unsigned scale_block() const { return at / arith::kScaleElems; }
    __device__ unsigned in_scale_block() const { return at % arith::kScaleElems; }
};

__device__ inline void add_dense(const std::byte* payload, Octet octet, GradientCodec codec,
                                 float (&sum)[kOctet]) {
    if (codec == GradientCodec::dense_fp32) {
        float values[kOctet];
        load(reinterpret_cast<const float*>(payload) + octet.at, values);
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            sum[i] += values[i];
        }
        return;
    }
    std::uint16_t halves[kOctet];
    load(reinterpret_cast<const std::uint16_t*>(payload) + octet.at, halves);
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        sum[i] += codec == GradientCodec::dense_bf16 ? from_bf16(halves[i]) : from_fp16(halves[i]);
    }
}

// The position of the first of `count` ascending indices that is not below `wanted`.
__device__ inline unsigned lower_bound(const std::uint16_t* indices, unsigned count,
                                       unsigned wanted) {
    unsigned begin = 0;
    while (count > 0) {
        const unsigned half = count / 2;
        if (indices[begin + half] < wanted) {
            begin += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return begin;
}

__device__ inline void add_topk(const std::byte* payload, Octet octet, codec::KernelForm form,
                                float (&sum)[kOctet]) {
    const auto* indices = reinterpret_cast<const std::uint16_t*>(payload);
    const std::uint16_t* values = indices + form.kept;
    for (unsigned k = lower_bound(indices, form.kept, octet.at); k < form.kept; ++k) {
        const unsigned place = indices[k] - octet.at;
        if (place >= kOctet) {
            return;
        }
        const float value =
            form.codec == GradientCodec::topk_fp16 ? from_fp16(values[k]) : from_bf16(values[k]);
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            sum[i] = i == place ? sum[i] + value : sum[i];
        }
    }
}

__device__ inline void load_codes(const std::byte* payload, Octet octet, GradientCodec codec,
                                  std::int32_t (&codes)[kOctet]) {
    constexpr unsigned kHalf = arith::kScaleElems / 2;
    const auto* of_piece = reinterpret_cast<const std::uint8_t*>(payload) +
                           octet.piece() * arith::piece_code_bytes(codec);
    const unsigned at = octet.at % arith::kPieceElems;
    const unsigned in_block = octet.in_scale_block();
    const bool is_q8 = codec == GradientCodec::q8;
    std::uint8_t bytes[kOctet];
    load(of_piece + (is_q8 ? at : at / arith::kScaleElems * kHalf + in_block % kHalf), bytes);
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        const std::uint32_t nibble = in_block >= kHalf ? bytes[i] >> 4U : bytes[i] & 0xFU;
        codes[i] =
            is_q8 ? static_cast<std::int8_t>(bytes[i]) : static_cast<std::int32_t>(nibble ^ 8U) - 8;
    }
}

__device__ inline void add_blocks(const std::byte* payload, Octet octet, GradientCodec codec,
                                  float (&sum)[kOctet]) {
    constexpr unsigned kPieces = kTileElems / arith::kPieceElems;
    const auto* scales =
        reinterpret_cast<const std::uint16_t*>(payload + kPieces * arith::piece_code_bytes(codec));
    const float scale = from_bf16(scales[octet.scale_block()]);
    std::int32_t codes[kOctet];
    load_codes(payload, octet, codec, codes);
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        sum[i] += arith::decode_code(codes[i], scale);
    }
}

// Loads what codec::decode_sum() would give for an octet.
__device__ inline void load_gradient(const GpuTiles& job, std::size_t tile, Octet octet,
                                     float (&sum)[kOctet]) {
#pragma unroll
    for (float& value : sum) {
        value = 0;
    }
    for (unsigned source = 0; source < job.sources; ++source) {
        const std::byte* payload =
            job.payloads + (tile * job.sources + source) * job.payload_stride;
        const GradientCodec codec = job.codec.codec;
        if (arith::is_dense(codec)) {
            add_dense(payload, octet, codec, sum);
        } else if (arith::is_topk(codec)) {
            add_topk(payload, octet, job.codec, sum);
        } else {
            add_blocks(payload, octet, codec, sum);
        }
    }
}

// --- Moments in storage --------------------------------------------------------------------------

// Without codes: fp32, or bf16 rounded with the half of the random bits that is the moment's.
template <typename Element>
__device__ inline void store_plain(const float (&values)[kOctet],
                                   const std::uint32_t (&random)[kOctet], Element* to) {
    Element stored[kOctet];
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        narrow(values[i], random[i], stored[i]);
    }
    store(stored, to);
}

// Returns the bits of the block's largest magnitude to each thread. All threads of the warp call
// it.
__device__ inline std::uint32_t largest_of_block(const float (&values)[kOctet]) {
    std::uint32_t largest = 0;
#pragma unroll
    for (const float value : values) {
        largest = max(largest, arith::magnitude_bits(value));
    }
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(kEveryLane, largest);
#else
    for (unsigned step = kWarp / 2; step > 0; step /= 2) {
        largest = max(largest, __shfl_xor_sync(kEveryLane, largest, step));
    }
    return largest;
#endif
}

template <typename Moment>
__device__ inline void store_codes(const float (&values)[kOctet], bool is_first_lane,
                                   typename Moment::Code* to, float* scale_to) {
    const float scale = Moment::scale_of(largest_of_block(values));
    const bool has_codes = arith::has_codes(scale);
    const float per_unit = has_codes ? Moment::codes() / scale : 0.0F;
    typename Moment::Code codes[kOctet];
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        codes[i] = has_codes ? Moment::encode(values[i], per_unit) : typename Moment::Code{0};
    }
    store(codes, to);
    if (is_first_lane) {
        *scale_to = scale;
    }
}

// --- The update ----------------------------------------------------------------------------------

template <typename T>
__device__ inline T* array_at(void* array, std::size_t at) {
    return static_cast<T*>(array) + at;
}

// `masters`: the stored ones, widened.
__device__ inline void store_parameters(const float (&masters)[kOctet], Dtype dtype,
                                        std::byte* parameters, std::size_t at) {
    if (dtype == Dtype::fp32) {
        store(masters, reinterpret_cast<float*>(parameters) + at);
    } else {
        memory::store_rounded(masters, dtype, reinterpret_cast<std::uint16_t*>(parameters) + at);
    }
}

// The last tensor that does not begin behind the element, if there is one, else the first.
__device__ inline GpuTensor tensor_of(const GpuTiles& job, std::size_t element) {
    const GpuTensor* tensors = job.tensors;
    for (std::size_t count = job.tensor_count; count > 1;) {
        const std::size_t half = count / 2;
        const bool is_behind = tensors[half].begin <= element;
        tensors += is_behind ? half : 0;
        count = is_behind ? count - half : half;
    }
    return *tensors;
}

// Calls `visit` with each element's place in the octet and its memory. Padding is in no tensor.
template <typename Element, typename Visit>
__device__ inline void for_each_in_tensors(const GpuTiles& job, std::size_t element, Visit visit) {
    GpuTensor tensor = tensor_of(job, element);
    for (unsigned i = 0; i < kOctet; ++i, ++element) {
        if (element >= tensor.end) {
            tensor = tensor_of(job, element);
        }
        if (tensor.begin <= element && element < tensor.end) {
            visit(i, reinterpret_cast<Element*>(tensor.memory) + (element - tensor.begin));
        }
    }
}

// The octet's memory if it lies in one tensor and is aligned, else null.
template <typename Element>
__device__ inline Element* octet_in_tensor(const GpuTiles& job, std::size_t element) {
    const GpuTensor tensor = tensor_of(job, element);
    auto* memory = reinterpret_cast<Element*>(tensor.memory) + (element - tensor.begin);
    const bool is_whole = tensor.begin <= element && element + kOctet <= tensor.end;
    return is_whole && reinterpret_cast<std::uintptr_t>(memory) % 16 == 0 ? memory : nullptr;
}

template <typename Element>
__device__ inline void store_in_tensors(const float (&masters)[kOctet], const GpuTiles& job,
                                        std::size_t element) {
    if (Element* memory = octet_in_tensor<Element>(job, element)) {
        memory::store_rounded(masters, job.parameter_dtype, memory);
        return;
    }
    Element rounded[kOctet];
    memory::round_to(job.parameter_dtype, masters, rounded);
    for_each_in_tensors<Element>(job, element, [&](unsigned i, Element* to) { *to = rounded[i]; });
}

// `masters`: the stored ones, widened.
__device__ inline void deliver_parameters(const float (&masters)[kOctet], const GpuTiles& job,
                                          std::size_t at) {
    if (job.tensors == nullptr && job.parameters == nullptr) {
        return;
    }
    if (job.tensors == nullptr) {
        store_parameters(masters, job.parameter_dtype, job.parameters, at);
    } else if (job.parameter_dtype == Dtype::fp32) {
        store_in_tensors<float>(masters, job, job.first_tile * kTileElems + at);
    } else {
        store_in_tensors<std::uint16_t>(masters, job, job.first_tile * kTileElems + at);
    }
}

template <typename Master>
__device__ inline void load_masters(const GpuTiles& job, std::size_t at, Master (&master)[kOctet]) {
    if constexpr (sizeof(Master) == sizeof(std::uint16_t)) {
        const std::size_t element = job.first_tile * kTileElems + at;
        if (job.are_written != nullptr && !*job.are_written) {
            if (const auto* memory = octet_in_tensor<Master>(job, element)) {
                load(memory, master);
                return;
            }
        }
    }
    load(array_at<Master>(job.old.master, at), master);
}

// Elements [at, at + 8) of all tiles; `at` / 256 is the same for all threads of a warp.
template <StateFormat kFormat>
__device__ inline void update_octet(const GpuTiles& job, std::size_t at) {
    using Types = Stored<kFormat>;
    const std::size_t tile = at / kTileElems;
    const std::size_t block = at / kBlockElems;
    const Octet octet{static_cast<unsigned>(at % kTileElems)};
    const bool is_first_lane = at % kBlockElems == 0;
    const Optimizer optimizer = job.scalars.optimizer;
    typename Types::Master master[kOctet];
    typename Types::Moment1 stored1[kOctet];
    typename Types::Moment2 stored2[kOctet];
    load_masters(job, at, master);
    load(array_at<typename Types::Moment1>(job.old.moment1, at), stored1);
    load(array_at<typename Types::Moment2>(job.old.moment2, at), stored2);
    float scale1 = 0;
    float scale2 = 0;
    if constexpr (Types::kHasCodes) {
        scale1 = job.old.scale1[block];
        scale2 = job.old.scale2[block];
    }
    float gradient[kOctet];
    load_gradient(job, tile, octet, gradient);
    const arith::TileKey key = arith::tile_key(job.random_key, job.first_tile + tile);
    float moment1[kOctet];
    float moment2[kOctet];
    float root2[kOctet];
    float masters[kOctet];
    std::uint32_t lower[kOctet];
    std::uint32_t upper[kOctet];
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        const std::uint32_t random = arith::rounding_bits(key, octet.at + i);
        lower[i] = random & 0xFFFFU;
        upper[i] = random >> 16U;
        float weight = widen(master[i]);
        if constexpr (Types::kHasCodes) {
            moment1[i] = arith::decode_moment1(stored1[i], scale1);
            moment2[i] = arith::decode_moment2(stored2[i], scale2);
        } else {
            moment1[i] = widen(stored1[i]);
            moment2[i] = widen(stored2[i]);
        }
        const float direction = arith::update_moments(optimizer, job.scalars, gradient[i], weight,
                                                      moment1[i], moment2[i]);
        root2[i] = arith::uses_moment2(optimizer) ? arith::Root<float>::of(moment2[i]) : direction;
        arith::update_master(optimizer, job.scalars, direction, root2[i], weight);
        narrow(weight, upper[i], master[i]);
        masters[i] = widen(master[i]);
    }
    store(master, array_at<typename Types::Master>(job.updated.master, at));
    deliver_parameters(masters, job, at);
    auto* to1 = array_at<typename Types::Moment1>(job.updated.moment1, at);
    auto* to2 = array_at<typename Types::Moment2>(job.updated.moment2, at);
    if (!arith::uses_moment1(optimizer)) {
        store(stored1, to1);
        if (Types::kHasCodes && is_first_lane) {
            job.updated.scale1[block] = scale1;
        }
    } else if constexpr (Types::kHasCodes) {
        store_codes<arith::FirstMoment>(moment1, is_first_lane, to1, job.updated.scale1 + block);
    } else {
        store_plain(moment1, lower, to1);
    }
    if (!arith::uses_moment2(optimizer)) {
        store(stored2, to2);
        if (Types::kHasCodes && is_first_lane) {
            job.updated.scale2[block] = scale2;
        }
    } else if constexpr (Types::kHasCodes) {
        store_codes<arith::SecondMoment>(root2, is_first_lane, to2, job.updated.scale2 + block);
    } else {
        store_plain(moment2, upper, to2);
    }
}

template <StateFormat kFormat>
__global__ void __launch_bounds__(kThreads) update(const GpuTiles job) {
    const std::size_t elems = job.tiles * kTileElems;
    const std::size_t step = std::size_t{gridDim.x} * kThreads * kOctet;
    for (std::size_t at = (std::size_t{blockIdx.x} * kThreads + threadIdx.x) * kOctet; at < elems;
         at += step) {
        update_octet<kFormat>(job, at);
    }
}

}  // namespace nearstep::csd
