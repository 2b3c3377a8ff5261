// Dense payloads on a GPU: a thread block for each piece.
#include "codec/gpu_kernels.hpp"
#include "codec/gpu_tile.cuh"
#include "memory/cuda_call.hpp"

namespace nearstep::codec {

namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kEach = kPieceOctets / kThreads;

__device__ inline float decoded(float value, Dtype dtype) { return rounded(value, dtype); }

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
    encode(TileSource source, Dtype dtype, float* next, std::byte* payloads, double* squares) {
    const unsigned piece = blockIdx.x % kTilePieces;
    const unsigned place = blockIdx.x / kTilePieces;
    const unsigned tile = source.tile_at(place);
    const std::size_t in_tile = piece * fpga::kPieceElems + threadIdx.x * kOctet;
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
        if (next) {
            float lost[kOctet];
#pragma unroll
            for (unsigned i = 0; i < kOctet; ++i) {
                lost[i] = lost_of(values[o][i], decoded(values[o][i], dtype));
            }
            store_floats(lost, next + from + o * kThreads * kOctet);
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

__global__ void __launch_bounds__(kThreads) decode_add(TileSource payloads, float* sums) {
    const std::size_t first = blockIdx.x * fpga::kPieceElems + threadIdx.x * kOctet;
    float values[kEach][kOctet];
    load_octets(payloads, first, kThreads * kOctet, values);
#pragma unroll
    for (unsigned o = 0; o < kEach; ++o) {
        float* at = sums + first + o * kThreads * kOctet;
        float sum[kOctet];
        load_floats(at, sum);
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            sum[i] += values[o][i];
        }
        store_floats(sum, at);
    }
}

// fp16 has no TileSource: gradients never come in it.
__global__ void __launch_bounds__(kThreads) decode_add_fp16(const uint4* payloads, float* sums) {
    const std::size_t octet = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
    const uint4 halves = payloads[octet];
    const std::uint32_t words[4] = {halves.x, halves.y, halves.z, halves.w};
    float sum[kOctet];
    load_floats(sums + octet * kOctet, sum);
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        sum[2 * i] += from_fp16(static_cast<std::uint16_t>(words[i] & 0xFFFFU));
        sum[2 * i + 1] += from_fp16(static_cast<std::uint16_t>(words[i] >> 16U));
    }
    store_floats(sum, sums + octet * kOctet);
}

}  // namespace

void encode_dense(const GpuEncoding& encoding, Dtype dtype, CUstream_st* stream) {
    const auto blocks = static_cast<unsigned>(encoding.tiles * kTilePieces);
    encode<<<blocks, kThreads, 0, stream>>>(TileSource(encoding), dtype, encoding.next_residual,
                                            encoding.payloads, encoding.squares);
    memory::check_launch();
}

void decode_add_dense(const std::byte* payloads, std::size_t tiles, Dtype dtype, float* sums,
                      CUstream_st* stream) {
    const auto pieces = static_cast<unsigned>(tiles * kTilePieces);
    if (dtype == Dtype::fp16) {
        decode_add_fp16<<<pieces * kEach, kThreads, 0, stream>>>(
            reinterpret_cast<const uint4*>(payloads), sums);
    } else {
        GpuEncoding as_gradient;
        as_gradient.gradient = payloads;
        as_gradient.gradient_dtype = dtype;
        decode_add<<<pieces, kThreads, 0, stream>>>(TileSource(as_gradient), sums);
    }
    memory::check_launch();
}

}  // namespace nearstep::codec
