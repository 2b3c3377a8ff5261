// The gradient codecs on a GPU. They encode tiles in GPU memory into the payloads of codec.hpp and
// sum dense ones, bit for bit. The formats are in docs/formats/gradient-payload.md. Calls return at
// once; the work runs in stream order. Any thread that uses the GPU may call. Without a GPU
// they throw CudaError.
#pragma once

#include "codec/codec.hpp"
#include "codec/gpu_encoding.hpp"
#include "memory/gpu.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace nearstep::codec {

// Reads the gradient once; topk may read it again.
void encode_on_gpu(const Codec& codec, const GpuEncoding& encoding, const memory::Stream& stream);

// squares[i]: the sum of the squares of what payload i decodes to, with the bits of the host's
// Kernels::add_squares() over the whole tile and its sums added in their order. Both are in GPU
// memory.
void square_on_gpu(const Codec& codec, const std::byte* payloads, std::size_t tiles,
                   double* squares, const memory::Stream& stream);

// sums[i] = ((a[i] + b[i]) + c[i]) + ... in fp32, over the addends in order. Each addend holds
// `elems` values of `dtype`. All addresses are in GPU memory, aligned to 16 bytes; `elems` is a
// multiple of 8.
void add_on_gpu(std::span<const std::byte* const> addends, Dtype dtype, std::size_t elems,
                float* sums, const memory::Stream& stream);

}  // namespace nearstep::codec
