// Dense payloads on a GPU: a thread block per piece.
#include "codec/gpu_kernels.hpp"
#include "codec/gpu_tile.cuh"
#include "memory/cuda_call.hpp"

namespace nearstep::codec {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kEach = kPieceOctets / kThreads;

__device__ inline uint4 narrow(const float (&values)[kOctet], Dtype dtype) {
    std::uint32_t words[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        const std::uint32_t low =
            dtype == Dtype::bf16 ? to_bf16(values[2 * i]) : to_fp16(values[2 * i]);
        const std::uint32_t high =
            dtype == Dtype::bf16 ? to_bf16(values[2 * i + 1]) : to_fp16(values[2 * i + 1]);
        words[i] = low | (high << 16U);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

__global__ void __launch_bounds__(kThreads)
    encode(TileSource source, Dtype dtype, std::byte* payloads, double* squares) {
    const unsigned piece = blockIdx.x % kTilePieces;
    const unsigned place = blockIdx.x / kTilePieces;
    const unsigned tile = source.tile_at(place);
    const std::size_t in_tile = piece * arith::kPieceElems + threadIdx.x * kOctet;
    const std::size_t from = tile * shard::kTileElems + in_tile;
    const std::size_t to = place * shard::kTileElems + in_tile;
    float values[kEach][kOctet];
    load_octets(source, from, kThreads * kOctet, values);
#pragma unroll
    for (unsigned o = 0; o < kEach; ++o) {
        const std::size_t at = to + o * kThreads * kOctet;
        if (dtype == Dtype::fp32) {
            store_floats(values[o], reinterpret_cast<float*>(payloads) + at);
        } else {
            *reinterpret_cast<uint4*>(payloads + 2 * at) = narrow(values[o], dtype);
        }
    }
    if (squares) {
        __shared__ double sums[kThreads / kWarp];
        double sum = 0;
#pragma unroll
        for (unsigned o = 0; o < kEach; ++o) {
            sum += squares_of(values[o]);
        }
        sum = sum_over_block<kThreads>(sum, sums);
        if (threadIdx.x == 0) {
            squares[tile * kSquareParts + piece] = sum;
        }
    }
}

}  // namespace

void encode_dense(const GpuEncoding& encoding, Dtype dtype, CUstream_st* stream) {
    const auto blocks = static_cast<unsigned>(encoding.tiles * kTilePieces);
    encode<<<blocks, kThreads, 0, stream>>>(TileSource(encoding), dtype, encoding.payloads,
                                            encoding.squares);
    memory::check_launch();
}

}  // namespace nearstep::codec
