// The kernel launches behind GpuCodec, one source each.
#pragma once

#include "codec/gpu_codec.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {

inline bool is_aligned(const void* address, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

// Whether decoded values are added to 0 or to the existing sums.
enum class Onto { nothing, sums };

void encode_dense(const GpuEncoding& encoding, Dtype dtype, CUstream_st* stream);
void decode_dense(const std::byte* payloads, std::size_t tiles, Dtype dtype, Onto onto, float* sums,
                  CUstream_st* stream);

// Keeps payload_bytes / 4 elements of each tile.
void encode_topk(const GpuEncoding& encoding, std::size_t payload_bytes, Dtype dtype,
                 CUstream_st* stream);
void decode_topk(const std::byte* payloads, std::size_t tiles, std::size_t payload_bytes,
                 Dtype dtype, Onto onto, float* sums, CUstream_st* stream);

void encode_blocks(const GpuEncoding& encoding, BlockCoding coding, std::size_t payload_bytes,
                   CUstream_st* stream);
void encode_ternary(const GpuEncoding& encoding, arith::Rounding rounding,
                    std::size_t payload_bytes, CUstream_st* stream);
void decode_blocks(const std::byte* payloads, std::size_t tiles, arith::BlockFormat format,
                   std::size_t payload_bytes, Onto onto, float* sums, CUstream_st* stream);

}  // namespace nearstep::codec
