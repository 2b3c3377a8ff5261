// Encodes dense tiles and adds up arrays on a GPU. Started by gpu_codec.cpp.
#include "codec/gpu_tile.cuh"

namespace nearstep::codec {

__global__ void __launch_bounds__(kPieceThreads) encode_dense(GpuEncoding e, Dtype dtype) {
    const Piece own = load_piece(e);
#pragma unroll
    for (unsigned o = 0; o < kEach; ++o) {
        const std::size_t at = own.place * shard::kTileElems + own.piece * arith::kPieceElems +
                               Piece::octet(o) * kOctet;
        if (dtype == Dtype::fp32) {
            memory::store(own.values[o], reinterpret_cast<float*>(e.payloads) + at);
        } else {
            memory::store_rounded(own.values[o], dtype,
                                  reinterpret_cast<std::uint16_t*>(e.payloads) + at);
        }
    }
}

// Each thread sums eight elements over all addends. T: float, or the bits of 16-bit values.
template <typename T>
__global__ void __launch_bounds__(kPieceThreads)
    add(const Addends addends, Dtype dtype, std::size_t octets, float* sums) {
    const std::size_t octet = static_cast<std::size_t>(blockIdx.x) * kPieceThreads + threadIdx.x;
    if (octet >= octets) {
        return;
    }
    const auto load_addend = [&](unsigned addend, float(&values)[kOctet]) {
        memory::load_widened(reinterpret_cast<const T*>(addends.at[addend]) + octet * kOctet, dtype,
                             values);
    };
    float sum[kOctet];
    load_addend(0, sum);
    for (unsigned a = 1; a < addends.count; ++a) {
        float value[kOctet];
        load_addend(a, value);
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            sum[i] += value[i];
        }
    }
    memory::store(sum, sums + octet * kOctet);
}

}  // namespace nearstep::codec
