// Dense payloads on a GPU: a thread block per piece.
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

constexpr unsigned kEachQuad = arith::kPieceElems / kQuad / kThreads;

template <Dtype kDtype>
__device__ inline float4 load_quad(const std::byte* payloads, std::size_t quad) {
    if (kDtype == Dtype::fp32) {
        return reinterpret_cast<const float4*>(payloads)[quad];
    }
    const uint2 halves = reinterpret_cast<const uint2*>(payloads)[quad];
    const auto widened = [](std::uint32_t half) {
        const auto value = static_cast<std::uint16_t>(half);
        return kDtype == Dtype::bf16 ? from_bf16(value) : from_fp16(value);
    };
    return make_float4(widened(halves.x & 0xFFFFU), widened(halves.x >> 16U),
                       widened(halves.y & 0xFFFFU), widened(halves.y >> 16U));
}

// Each thread takes four elements at a time, so that a warp writes whole cache lines.
template <Dtype kDtype, Onto kOnto>
__global__ void __launch_bounds__(kThreads) decode(const std::byte* payloads, float* sums) {
    const std::size_t first = blockIdx.x * (arith::kPieceElems / kQuad) + threadIdx.x;
    auto* quads = reinterpret_cast<float4*>(sums) + first;
    // Issue all loads before the first store.
    float4 values[kEachQuad];
    float4 sum[kEachQuad];
#pragma unroll
    for (unsigned o = 0; o < kEachQuad; ++o) {
        values[o] = load_quad<kDtype>(payloads, first + o * kThreads);
        sum[o] = kOnto == Onto::sums ? quads[o * kThreads] : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (unsigned o = 0; o < kEachQuad; ++o) {
        quads[o * kThreads] = make_float4(sum[o].x + values[o].x, sum[o].y + values[o].y,
                                          sum[o].z + values[o].z, sum[o].w + values[o].w);
    }
}

template <Dtype kDtype>
void launch_decode(const std::byte* payloads, std::size_t tiles, Onto onto, float* sums,
                   CUstream_st* stream) {
    const auto pieces = static_cast<unsigned>(tiles * kTilePieces);
    if (onto == Onto::sums) {
        decode<kDtype, Onto::sums><<<pieces, kThreads, 0, stream>>>(payloads, sums);
    } else {
        decode<kDtype, Onto::nothing><<<pieces, kThreads, 0, stream>>>(payloads, sums);
    }
}

}  // namespace

void encode_dense(const GpuEncoding& encoding, Dtype dtype, CUstream_st* stream) {
    const auto blocks = static_cast<unsigned>(encoding.tiles * kTilePieces);
    encode<<<blocks, kThreads, 0, stream>>>(TileSource(encoding), dtype, encoding.next_residual,
                                            encoding.payloads, encoding.squares);
    memory::check_launch();
}

void decode_dense(const std::byte* payloads, std::size_t tiles, Dtype dtype, Onto onto, float* sums,
                  CUstream_st* stream) {
    if (dtype == Dtype::fp32) {
        launch_decode<Dtype::fp32>(payloads, tiles, onto, sums, stream);
    } else if (dtype == Dtype::bf16) {
        launch_decode<Dtype::bf16>(payloads, tiles, onto, sums, stream);
    } else {
        launch_decode<Dtype::fp16>(payloads, tiles, onto, sums, stream);
    }
    memory::check_launch();
}

}  // namespace nearstep::codec
