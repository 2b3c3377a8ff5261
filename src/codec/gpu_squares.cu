// Adds up the squares of what payloads decode to, in the order of the host's kernels. Started by
// gpu_codec.cpp.
#include "codec/gpu_tile.cuh"
#include "codec/kernel_form.hpp"

namespace nearstep::codec {

using arith::GradientCodec;
using arith::kScaleElems;
using shard::kTileElems;

// A tile has a thread for each of its sums, which squares every eighth element, one after the
// other.
constexpr unsigned kTilesOfBlock = kSquareThreads / kSquareSums;
constexpr unsigned kRows = kScaleElems / kSquareSums;
constexpr unsigned kTileBlocks = kTileElems / kScaleElems;
constexpr unsigned kAtOnce = 4;  // blocks whose loads are under way together

// The elements of a block that one sum squares.
using Column = float[kRows];

template <typename T>
struct Dense {
    Dtype dtype;

    __device__ void load(const std::byte* payload, unsigned block, unsigned lane,
                         Column& to) const {
        const T* values = reinterpret_cast<const T*>(payload) + block * kScaleElems + lane;
#pragma unroll
        for (unsigned row = 0; row < kRows; ++row) {
            to[row] = memory::widened(values[row * kSquareSums], dtype);
        }
    }
};

template <GradientCodec kCodec>
struct Codes {
    static constexpr unsigned kBlockBytes = arith::piece_code_bytes(kCodec) / arith::kPieceBlocks;

    __device__ void load(const std::byte* payload, unsigned block, unsigned lane,
                         Column& to) const {
        const auto* codes =
            reinterpret_cast<const std::uint8_t*>(payload) + block * kBlockBytes + lane;
        const auto* scales =
            reinterpret_cast<const std::uint16_t*>(payload + kTileBlocks * kBlockBytes);
        const float scale = from_bf16(scales[block]);
#pragma unroll
        for (unsigned row = 0; row < kRows; ++row) {
            to[row] = arith::decode_code(code(codes, row), scale);
        }
    }

    // A byte of q4 holds an element of the block's first half and one of its second half.
    __device__ static std::int32_t code(const std::uint8_t* codes, unsigned row) {
        const std::uint32_t byte = codes[row * kSquareSums % kBlockBytes];
        if (kCodec == GradientCodec::q8) {
            return static_cast<std::int8_t>(byte);
        }
        const std::uint32_t nibble = row < kRows / 2 ? byte & 0xFU : byte >> 4U;
        return static_cast<std::int32_t>(nibble ^ 8U) - 8;
    }
};

// The square is exact with or without fma.
__device__ inline double plus_square(double sum, float value) {
    const double wide = value;
    return __fma_rn(wide, wide, sum);
}

template <typename Values>
__device__ inline double squares_of(const Values& values, const std::byte* payload, unsigned lane) {
    double sum = 0;
    for (unsigned block = 0; block < kTileBlocks; block += kAtOnce) {
        Column columns[kAtOnce];
#pragma unroll
        for (unsigned b = 0; b < kAtOnce; ++b) {
            values.load(payload, block + b, lane, columns[b]);
        }
#pragma unroll
        for (unsigned b = 0; b < kAtOnce; ++b) {
#pragma unroll
            for (const float value : columns[b]) {
                sum = plus_square(sum, value);
            }
        }
    }
    return sum;
}

// The kept elements of a top-k payload. All other elements are zero.
struct KeptElements {
    unsigned count;
    Dtype dtype;
};

__device__ inline double squares_of(const KeptElements& kept, const std::byte* payload,
                                    unsigned lane) {
    const auto* indices = reinterpret_cast<const std::uint16_t*>(payload);
    const std::uint16_t* values = indices + kept.count;
    double sum = 0;
    for (unsigned i = 0; i < kept.count; ++i) {
        if (indices[i] % kSquareSums == lane) {
            sum = plus_square(sum, memory::widened(values[i], kept.dtype));
        }
    }
    return sum;
}

template <GradientCodec kCodec>
__device__ inline auto values_of(unsigned kept) {
    if constexpr (kCodec == GradientCodec::dense_fp32) {
        return Dense<float>{Dtype::fp32};
    } else if constexpr (kCodec == GradientCodec::dense_bf16) {
        return Dense<std::uint16_t>{Dtype::bf16};
    } else if constexpr (kCodec == GradientCodec::dense_fp16) {
        return Dense<std::uint16_t>{Dtype::fp16};
    } else if constexpr (kCodec == GradientCodec::topk_bf16) {
        return KeptElements{kept, Dtype::bf16};
    } else if constexpr (kCodec == GradientCodec::topk_fp16) {
        return KeptElements{kept, Dtype::fp16};
    } else {
        return Codes<kCodec>{};
    }
}

// `kept`: elements of a top-k payload.
template <GradientCodec kCodec>
__global__ void __launch_bounds__(kSquareThreads)
    add_up(unsigned kept, const std::byte* payloads, std::size_t payload_bytes, std::size_t tiles,
           double* squares) {
    const auto values = values_of<kCodec>(kept);
    const unsigned lane = threadIdx.x % kSquareSums;
    const std::size_t tile = std::size_t{blockIdx.x} * kTilesOfBlock + threadIdx.x / kSquareSums;
    const double mine =
        tile < tiles ? squares_of(values, payloads + tile * payload_bytes, lane) : 0;
    double sum = 0;
    for (unsigned from = 0; from < kSquareSums; ++from) {
        sum += __shfl_sync(kEveryLane, mine, from, kSquareSums);
    }
    if (lane == 0 && tile < tiles) {
        squares[tile] = sum;
    }
}

}  // namespace nearstep::codec
