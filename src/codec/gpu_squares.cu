// Sums of squares of what payloads decode to: a thread block for each piece.
#include "codec/gpu_block_codes.cuh"
#include "codec/gpu_kernels.hpp"
#include "codec/gpu_pairs.cuh"
#include "codec/gpu_tile.cuh"
#include "memory/cuda_call.hpp"

namespace nearstep::codec {

namespace {

using fpga::BlockFormat;
using fpga::kPieceBlocks;
using fpga::kPieceElems;
using fpga::kScaleElems;

constexpr unsigned kThreads = 256;
constexpr unsigned kEachQuad = kPieceElems / kQuad / kThreads;
static_assert(kPieceBlocks == 2 * kWarp, "a warp sums the blocks of a piece");

__device__ inline double square_of(float value) {
    const double wide = value;
    return wide * wide;
}

// `blocks`: shared, the sums of the piece's blocks. All threads call.
__device__ inline void store_sum(const double* blocks, double* sum) {
    __syncthreads();
    if (threadIdx.x < kWarp) {
        double rest = blocks[threadIdx.x] + blocks[threadIdx.x + kWarp];
#pragma unroll
        for (unsigned step = kWarp / 2; step > 0; step /= 2) {
            rest += __shfl_xor_sync(kEveryLane, rest, step);
        }
        if (threadIdx.x == 0) {
            *sum = rest;
        }
    }
}

// Exact in each block, so in any order there.
template <BlockFormat kFormat>
__global__ void __launch_bounds__(kThreads)
    of_blocks(const std::byte* payloads, std::size_t payload_bytes, double* sums) {
    __shared__ double blocks[kPieceBlocks];
    const unsigned piece = blockIdx.x % kTilePieces;
    const std::byte* payload = payloads + blockIdx.x / kTilePieces * payload_bytes;
    const auto* words =
        reinterpret_cast<const std::uint32_t*>(payload + piece * fpga::piece_code_bytes(kFormat));
    const auto* scales = reinterpret_cast<const std::uint16_t*>(
                             payload + kTilePieces * fpga::piece_code_bytes(kFormat)) +
                         piece * kPieceBlocks;
#pragma unroll
    for (unsigned o = 0; o < kEachQuad; ++o) {
        const unsigned quad = o * kThreads + threadIdx.x;
        const unsigned block = quad / kBlockQuads;
        std::uint32_t codes = load_codes<kFormat>(words, quad);
        if (kFormat == BlockFormat::ternary) {
            codes = digits_of(codes, block % fpga::kTernaryBlocks);
        }
        double sum = 0;
#pragma unroll
        for (unsigned i = 0; i < kQuad; ++i) {
            sum += square_of(decode_at<kFormat>(codes, i, scales[block]));
        }
#pragma unroll
        for (unsigned step = kBlockQuads / 2; step > 0; step /= 2) {
            sum += __shfl_xor_sync(kEveryLane, sum, step);
        }
        if (quad % kBlockQuads == 0) {
            blocks[block] = sum;
        }
    }
    store_sum(blocks, sums + blockIdx.x);
}

// `value(i)`: of the piece's element i.
template <typename Value>
__device__ inline void sum_piece(const Value& value, double* blocks, double* sum) {
    const unsigned lane = threadIdx.x % kPairLanes;
    for (unsigned block = threadIdx.x / kPairLanes; block < kPieceBlocks;
         block += kThreads / kPairLanes) {
        const unsigned first = block * kScaleElems + 2 * lane;
        const double of_block = sum_of_block(
            [&](unsigned i) { return square_of(value(first + i / 2 * kPairStride + i % 2)); });
        if (lane == 0) {
            blocks[block] = of_block;
        }
    }
    store_sum(blocks, sum);
}

template <Dtype kDtype>
__global__ void __launch_bounds__(kThreads) of_dense(const void* payloads, double* sums) {
    __shared__ double blocks[kPieceBlocks];
    const std::size_t first = std::size_t{blockIdx.x} * kPieceElems;
    const auto value = [&](unsigned i) {
        if (kDtype == Dtype::fp32) {
            return static_cast<const float*>(payloads)[first + i];
        }
        const std::uint16_t half = static_cast<const std::uint16_t*>(payloads)[first + i];
        return kDtype == Dtype::bf16 ? from_bf16(half) : from_fp16(half);
    };
    sum_piece(value, blocks, sums + blockIdx.x);
}

// The first of the ascending indices that is not below `least`.
__device__ inline unsigned first_from(const std::uint16_t* indices, unsigned count,
                                      unsigned least) {
    unsigned begin = 0;
    for (unsigned end = count; begin < end;) {
        const unsigned middle = (begin + end) / 2;
        if (indices[middle] < least) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin;
}

__global__ void __launch_bounds__(kThreads)
    of_topk(const std::uint16_t* payloads, unsigned kept, bool is_fp16, double* sums) {
    __shared__ double blocks[kPieceBlocks];
    __shared__ float values[kPieceElems];
    const unsigned first = blockIdx.x % kTilePieces * static_cast<unsigned>(kPieceElems);
    const std::uint16_t* indices = payloads + std::size_t{blockIdx.x / kTilePieces} * 2 * kept;
    for (unsigned i = threadIdx.x; i < kPieceElems; i += kThreads) {
        values[i] = 0;
    }
    __syncthreads();
    const unsigned end = first_from(indices, kept, first + static_cast<unsigned>(kPieceElems));
    for (unsigned i = first_from(indices, kept, first) + threadIdx.x; i < end; i += kThreads) {
        const std::uint16_t half = indices[kept + i];
        // As decoding adds it to 0.
        values[indices[i] - first] = 0.0F + (is_fp16 ? from_fp16(half) : from_bf16(half));
    }
    __syncthreads();
    sum_piece([&](unsigned i) { return values[i]; }, blocks, sums + blockIdx.x);
}

unsigned pieces_of(std::size_t tiles) { return static_cast<unsigned>(tiles * kTilePieces); }

}  // namespace

void sum_squares_of_blocks(const std::byte* payloads, std::size_t tiles, BlockFormat format,
                           std::size_t payload_bytes, double* sums, CUstream_st* stream) {
    const unsigned blocks = pieces_of(tiles);
    switch (format) {
        case BlockFormat::q8:
            of_blocks<BlockFormat::q8>
                <<<blocks, kThreads, 0, stream>>>(payloads, payload_bytes, sums);
            break;
        case BlockFormat::q4:
            of_blocks<BlockFormat::q4>
                <<<blocks, kThreads, 0, stream>>>(payloads, payload_bytes, sums);
            break;
        case BlockFormat::ternary:
            of_blocks<BlockFormat::ternary>
                <<<blocks, kThreads, 0, stream>>>(payloads, payload_bytes, sums);
            break;
        case BlockFormat::sign:
            of_blocks<BlockFormat::sign>
                <<<blocks, kThreads, 0, stream>>>(payloads, payload_bytes, sums);
            break;
    }
    memory::check_launch();
}

void sum_squares_of_dense(const std::byte* payloads, std::size_t tiles, Dtype dtype, double* sums,
                          CUstream_st* stream) {
    const unsigned blocks = pieces_of(tiles);
    if (dtype == Dtype::fp32) {
        of_dense<Dtype::fp32><<<blocks, kThreads, 0, stream>>>(payloads, sums);
    } else if (dtype == Dtype::bf16) {
        of_dense<Dtype::bf16><<<blocks, kThreads, 0, stream>>>(payloads, sums);
    } else {
        of_dense<Dtype::fp16><<<blocks, kThreads, 0, stream>>>(payloads, sums);
    }
    memory::check_launch();
}

void sum_squares_of_topk(const std::byte* payloads, std::size_t tiles, std::size_t payload_bytes,
                         Dtype dtype, double* sums, CUstream_st* stream) {
    const auto kept = static_cast<unsigned>(payload_bytes / 4);
    const auto* halves = reinterpret_cast<const std::uint16_t*>(payloads);
    of_topk<<<pieces_of(tiles), kThreads, 0, stream>>>(halves, kept, dtype == Dtype::fp16, sums);
    memory::check_launch();
}

}  // namespace nearstep::codec
