// The gradient codecs on a GPU. They encode tiles in GPU memory into the payloads of codec.hpp and
// sum dense ones, bit for bit. The formats are in docs/formats/gradient-payload.md. Calls return at
// once; the work runs in stream order. Any thread that uses the GPU may call. A program without
// CUDA throws CudaError.
#pragma once

#include "codec/codec.hpp"
#include "memory/gpu.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace nearstep::codec {

// All addresses are in GPU memory, aligned to 16 bytes unless stated otherwise, and do not overlap.
struct GpuEncoding {
    std::size_t tiles = 0;

    // tiles x kTileElems values in fp32 or bf16, zero in the padding. fp32 values are first rounded
    // to `rounding`, as they are when a group of ranks exchanges them.
    const void* gradient = nullptr;
    Dtype gradient_dtype = Dtype::fp32;
    Dtype rounding = Dtype::fp32;

    // Payload i encodes tile order[i]; null: tile i.
    const std::uint32_t* order = nullptr;

    // The payloads take tiles x payload_bytes() bytes.
    std::byte* payloads = nullptr;

    // For stochastic rounding. Tile i's key is arith::tile_key(random_key, first_tile + places[i]);
    // if `places` is null, i replaces places[i].
    std::uint64_t random_key = 0;
    std::uint64_t first_tile = 0;
    const std::uint32_t* places = nullptr;
};

// Reads the gradient once; topk may read it again.
void encode_on_gpu(const Codec& codec, const GpuEncoding& encoding, const memory::Stream& stream);

// squares[i]: the sum of the squares of what payload i decodes to, with the bits of the host's
// Kernels::add_squares() over the whole tile and its sums added in their order. Both are in GPU
// memory.
void square_on_gpu(const Codec& codec, const std::byte* payloads, std::size_t tiles,
                   double* squares, const memory::Stream& stream);

// Most addends in one sum; a node has no more GPUs.
constexpr std::size_t kMostAddends = 64;

// sums[i] = ((a[i] + b[i]) + c[i]) + ... in fp32, over the addends in order. Each addend holds
// `elems` values of `dtype`. All addresses are in GPU memory, aligned to 16 bytes; `elems` is a
// multiple of 8.
void add_on_gpu(std::span<const std::byte* const> addends, Dtype dtype, std::size_t elems,
                float* sums, const memory::Stream& stream);

}  // namespace nearstep::codec
