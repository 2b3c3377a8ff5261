// Ternary encoding on a GPU: eight neighbouring threads handle the five blocks whose codes share
// bytes, so that no thread needs another's codes.
//
// gpu_pairs.cuh says which elements of each block a thread holds.
#include "codec/gpu_block.cuh"
#include "codec/gpu_pairs.cuh"
#include "memory/cuda_call.hpp"

namespace nearstep::codec {

namespace {

using arith::BlockFormat;
using arith::kPieceBlocks;
using arith::kScaleElems;
using arith::kTernaryBlocks;
using arith::kTernaryGroups;
using arith::Rounding;

constexpr unsigned kThreads = 128;
constexpr unsigned kTileGroups = kTilePieces * kTernaryGroups;
constexpr unsigned kParts = kTileGroups * kPairLanes / kThreads;  // thread blocks per tile
static_assert(kParts * kThreads == kTileGroups * kPairLanes,
              "a tile's groups fill its thread blocks");
static_assert(kParts <= kSquareParts, "a thread block has a sum of squares");
static_assert(kPairLanes == kBlockThreads, "a thread has eight elements of a block");

// Indexed by block, then by element in ascending order.
using Values = float[kTernaryBlocks][kOctet];

// Loads the thread's elements from element `at` on; zeros for the last block if the group has none.
// Issues all loads before the first use.
__device__ inline void load_group(const TileSource& source, std::size_t at, bool has_last,
                                  Values& values) {
    if (source.is_bf16) {
        std::uint32_t pairs[kTernaryBlocks][kOctet / 2];
        const auto* from = static_cast<const std::uint16_t*>(source.values) + at;
#pragma unroll
        for (unsigned k = 0; k < kTernaryBlocks; ++k) {
#pragma unroll
            for (unsigned j = 0; j < kOctet / 2; ++j) {
                const bool is_there = k + 1 < kTernaryBlocks || has_last;
                pairs[k][j] = is_there ? *reinterpret_cast<const std::uint32_t*>(
                                             from + k * kScaleElems + j * kPairStride)
                                       : 0U;
            }
        }
#pragma unroll
        for (unsigned k = 0; k < kTernaryBlocks; ++k) {
#pragma unroll
            for (unsigned j = 0; j < kOctet / 2; ++j) {
                values[k][2 * j] = float_of(pairs[k][j] << 16U);
                values[k][2 * j + 1] = float_of(pairs[k][j] & 0xFFFF0000U);
            }
        }
    } else {
        const auto* from = static_cast<const float*>(source.values) + at;
#pragma unroll
        for (unsigned k = 0; k < kTernaryBlocks; ++k) {
#pragma unroll
            for (unsigned j = 0; j < kOctet / 2; ++j) {
                const bool is_there = k + 1 < kTernaryBlocks || has_last;
                const float2 pair =
                    is_there
                        ? *reinterpret_cast<const float2*>(from + k * kScaleElems + j * kPairStride)
                        : make_float2(0, 0);
                values[k][2 * j] = rounded(pair.x, source.rounding);
                values[k][2 * j + 1] = rounded(pair.y, source.rounding);
            }
        }
    }
}

// Returns of[k], where this thread is number k of its eight.
template <typename T>
__device__ inline T own_of(const T (&of)[kTernaryBlocks]) {
    const unsigned lane = threadIdx.x % kPairLanes;
    T own = of[kTernaryBlocks - 1];
#pragma unroll
    for (unsigned k = 0; k + 1 < kTernaryBlocks; ++k) {
        own = lane == k ? of[k] : own;
    }
    return own;
}

// Codes of a thread's eight elements per block, four in a word: the sum of code x 256^i modulo
// 2^32, so that linear operations work on four codes at once.
using Codes = std::uint32_t[kTernaryBlocks][2];

// The sign bytes of four values.
__device__ inline std::uint32_t upper_bytes(const float* values) {
    const std::uint32_t low = __byte_perm(bits_of(values[0]), bits_of(values[1]), 0x0073);
    const std::uint32_t high = __byte_perm(bits_of(values[2]), bits_of(values[3]), 0x0073);
    return __byte_perm(low, high, 0x5410);
}

// Rounds to nearest. Thread k of the eight returns the scale of block k; the last three have no
// block. Codes of blocks whose scale allows none are cleared later.
__device__ inline std::uint16_t encode_nearest(const Values& values, Codes& codes) {
    constexpr unsigned kCountBits = 6;
    float thresholds[kTernaryBlocks];
    float kept[kTernaryBlocks];
    std::uint32_t counts = 0;  // elements above the threshold, a field per block
#pragma unroll
    for (unsigned k = 0; k < kTernaryBlocks; ++k) {
        const float sum = sum_of_block([&](unsigned i) { return arith::magnitude(values[k][i]); });
        thresholds[k] = sum * (1.0F / kScaleElems) * arith::kTernaryThreshold;
    }
#pragma unroll
    for (unsigned k = 0; k < kTernaryBlocks; ++k) {
        std::uint32_t above[2] = {0, 0};
        float terms[kOctet];
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            const bool is_above = arith::magnitude(values[k][i]) > thresholds[k];
            terms[i] = is_above ? arith::magnitude(values[k][i]) : 0.0F;
            above[i / 4] |= is_above ? 1U << (8 * (i % 4)) : 0U;
        }
        kept[k] = sum_of_block([&](unsigned i) { return terms[i]; });
        counts |= static_cast<std::uint32_t>(__popc(above[0] | (above[1] << 1U)))
                  << (kCountBits * k);
#pragma unroll
        for (unsigned w = 0; w < 2; ++w) {
            codes[k][w] = above[w] - 2 * (above[w] & (upper_bytes(values[k] + 4 * w) >> 7U));
        }
    }
    // The sum over four threads is at most 32; the last step could overflow a field.
    counts += __shfl_xor_sync(kEveryLane, counts, 4);
    counts += __shfl_xor_sync(kEveryLane, counts, 2);
    const std::uint32_t others = __shfl_xor_sync(kEveryLane, counts, 1);
    const unsigned field = kCountBits * (threadIdx.x % kPairLanes);
    constexpr std::uint32_t kField = (1U << kCountBits) - 1;
    const std::uint32_t count = ((counts >> field) & kField) + ((others >> field) & kField);
    // Keep a mean that is not finite, so that the scale becomes NaN.
    const float threshold = own_of(thresholds);
    const bool is_finite = arith::magnitude_bits(threshold) < 0x7F800000U;
    const float mean = own_of(kept) / static_cast<float>(max(count, 1U));
    return arith::scale_of_mean(is_finite ? mean : threshold);
}

// Rounds stochastically; returns as above. `index`: the thread's first element in its tile.
__device__ inline std::uint16_t encode_stochastic(const Values& values, arith::TileKey key,
                                                  std::uint32_t index, Codes& codes) {
    std::uint16_t scales[kTernaryBlocks];
#pragma unroll
    for (unsigned k = 0; k < kTernaryBlocks; ++k) {
        scales[k] = arith::scale_of_largest(largest_of_block(values[k]), 1.0F);
        const float per_scale = arith::per_scale(scales[k]);
#pragma unroll
        for (unsigned w = 0; w < 2; ++w) {
            std::uint32_t word = 0;
#pragma unroll
            for (unsigned i = 0; i < 4; ++i) {
                const unsigned at = k * kScaleElems + (4 * w + i) / 2 * kPairStride + i % 2;
                const float dither = arith::dither_of(arith::rounding_bits(key, index + at));
                const std::int32_t code =
                    arith::code_of(values[k][4 * w + i], per_scale, dither, 1);
                word += static_cast<std::uint32_t>(code) << (8 * i);
            }
            codes[k][w] = word;
        }
    }
    return own_of(scales);
}

// Clears the codes of blocks that have none. `scale`: of this thread's block.
__device__ inline void clear_codes(std::uint16_t scale, Codes& codes) {
    const std::uint32_t have = __ballot_sync(kEveryLane, arith::has_block_codes(scale)) >>
                               (threadIdx.x % kWarp / kPairLanes * kPairLanes);
#pragma unroll
    for (unsigned k = 0; k < kTernaryBlocks; ++k) {
        const bool has_codes = ((have >> k) & 1U) != 0;
        codes[k][0] = has_codes ? codes[k][0] : 0U;
        codes[k][1] = has_codes ? codes[k][1] : 0U;
    }
}

// Horner's rule on four bytes at once; none exceeds 242.
__device__ inline std::uint32_t pack(const Codes& codes, unsigned w) {
    std::uint32_t word = 0;
#pragma unroll
    for (unsigned k = kTernaryBlocks; k-- > 0;) {
        word = word * 3 + codes[k][w];
    }
    return word + 0x79797979U;  // adds the digit 1 in all places: code 0 is digit 1
}

// `bytes`: the group's codes. A thread has the bytes of elements 2t and 2t + 1 of each 16. Of two
// neighbours, the even one writes all four in the first and third 16, the odd one in the others.
__device__ inline void store(const Codes& codes, std::byte* bytes) {
    const unsigned lane = threadIdx.x % kPairLanes;
    const std::uint32_t low = pack(codes, 0);
    const std::uint32_t high = pack(codes, 1);
    const bool is_odd = lane % 2 != 0;
    const std::uint32_t kept = __byte_perm(low, high, is_odd ? 0x7632 : 0x5410);
    const std::uint32_t given = __byte_perm(low, high, is_odd ? 0x5410 : 0x7632);
    const std::uint32_t got = __shfl_xor_sync(kEveryLane, given, 1);
    auto* words = reinterpret_cast<std::uint32_t*>(bytes) + lane / 2 + (is_odd ? 4 : 0);
    words[0] = __byte_perm(kept, got, is_odd ? 0x1054 : 0x5410);
    words[8] = __byte_perm(kept, got, is_odd ? 0x3276 : 0x7632);
}

template <Rounding kRounding>
__global__ void __launch_bounds__(kThreads) encode(BlockEncoding e) {
    __shared__ double sums[kThreads / kWarp];
    const unsigned place = blockIdx.x / kParts;
    const unsigned part = blockIdx.x % kParts;
    const unsigned tile = e.source.tile_at(place);
    const unsigned number = (part * kThreads + threadIdx.x) / kPairLanes;  // group in the tile
    const unsigned lane = threadIdx.x % kPairLanes;
    const unsigned group = number % kTernaryGroups;
    const bool has_last = group + 1 < kTernaryGroups;
    const unsigned block = number / kTernaryGroups * kPieceBlocks + group * kTernaryBlocks;
    const unsigned in_tile = block * kScaleElems + 2 * lane;
    const std::size_t from = tile * shard::kTileElems + in_tile;

    Values values;
    load_group(e.source, from, has_last, values);
    Codes codes;
    const std::uint16_t scale =
        kRounding == Rounding::nearest
            ? encode_nearest(values, codes)
            : encode_stochastic(values, e.key_of<kRounding>(tile), in_tile, codes);
    clear_codes(scale, codes);
    std::byte* payload = e.payloads + place * e.payload_bytes;
    store(codes, payload + number * kScaleElems);
    if (lane < (has_last ? kTernaryBlocks : kTernaryBlocks - 1)) {
        constexpr std::size_t kCodeBytes =
            kTilePieces * arith::piece_code_bytes(BlockFormat::ternary);
        reinterpret_cast<std::uint16_t*>(payload + kCodeBytes)[block + lane] = scale;
    }
    if (e.squares) {
        double sum = 0;
#pragma unroll
        for (unsigned k = 0; k < kTernaryBlocks; ++k) {
            sum += squares_of(values[k]);
        }
        sum = sum_over_block<kThreads>(sum, sums);
        double* squares = e.squares + tile * kSquareParts;
        if (threadIdx.x == 0) {
            squares[part] = sum;
        }
        if (part == 0 && threadIdx.x < kSquareParts - kParts) {
            squares[kParts + threadIdx.x] = 0;
        }
    }
}

}  // namespace

void encode_ternary(const GpuEncoding& encoding, Rounding rounding, std::size_t payload_bytes,
                    CUstream_st* stream) {
    const BlockEncoding arguments(encoding, payload_bytes);
    const auto blocks = static_cast<unsigned>(encoding.tiles * kParts);
    if (rounding == Rounding::stochastic) {
        encode<Rounding::stochastic><<<blocks, kThreads, 0, stream>>>(arguments);
    } else {
        encode<Rounding::nearest><<<blocks, kThreads, 0, stream>>>(arguments);
    }
    memory::check_launch();
}

}  // namespace nearstep::codec
