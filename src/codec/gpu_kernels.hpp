// The kernel launches behind GpuCodec, one source each.
#pragma once

#include "codec/gpu_codec.hpp"

#include <cstddef>
#include <cstdint>

namespace nearstep::codec {

inline bool is_aligned(const void* address, std::size_t bytes) {
    return reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

void encode_dense(const GpuEncoding& encoding, Dtype dtype, CUstream_st* stream);

// Keeps payload_bytes / 4 elements of each tile.
void encode_topk(const GpuEncoding& encoding, std::size_t payload_bytes, Dtype dtype,
                 CUstream_st* stream);

void encode_blocks(const GpuEncoding& encoding, BlockCoding coding, std::size_t payload_bytes,
                   CUstream_st* stream);

}  // namespace nearstep::codec
