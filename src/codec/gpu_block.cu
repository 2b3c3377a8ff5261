// Block codes but ternary on a GPU. A thread block encodes one piece. Eight neighbouring threads
// share a block of 64 elements, eight each.
#include "codec/gpu_block.cuh"
#include "codec/gpu_kernels.hpp"
#include "memory/cuda_call.hpp"

namespace nearstep::codec {

namespace {

using arith::BlockFormat;
using arith::kPieceBlocks;
using arith::kScaleElems;
using arith::Rounding;

constexpr unsigned kThreads = 256;
constexpr unsigned kEach = kPieceOctets / kThreads;
static_assert(kBlockThreads == 8, "sums over a block take three exchanges");

// --- Scales --------------------------------------------------------------------------------------

// Sums a block by halving, as the format requires: element i plus i + n/2, until one is left. All
// its threads get the sum. In each exchange a thread gives away one half of its terms and keeps the
// other. Terms are added in pairs, so the order within a pair does not matter.
__device__ inline float sum_of_block(const float (&terms)[kOctet]) {
    const bool is_high = (threadIdx.x & 4U) != 0;
    const bool is_second = (threadIdx.x & 2U) != 0;
    const bool is_odd = (threadIdx.x & 1U) != 0;
    float half[4];
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        const float kept = is_high ? terms[i + 4] : terms[i];
        const float given = is_high ? terms[i] : terms[i + 4];
        half[i] = kept + __shfl_xor_sync(kEveryLane, given, 4);
    }
    float quarter[2];
#pragma unroll
    for (unsigned i = 0; i < 2; ++i) {
        const float kept = is_second ? half[i + 2] : half[i];
        const float given = is_second ? half[i] : half[i + 2];
        quarter[i] = kept + __shfl_xor_sync(kEveryLane, given, 2);
    }
    const float kept = is_odd ? quarter[1] : quarter[0];
    const float given = is_odd ? quarter[0] : quarter[1];
    float sum = kept + __shfl_xor_sync(kEveryLane, given, 1);
    // Now thread t holds the sum of the elements equal to t modulo 8.
#pragma unroll
    for (unsigned step = kBlockThreads / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(kEveryLane, sum, step);
    }
    return sum;
}

__device__ inline float mean_magnitude(const float (&values)[kOctet]) {
    float terms[kOctet];
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        terms[i] = arith::magnitude(values[i]);
    }
    return sum_of_block(terms) * (1.0F / kScaleElems);
}

template <BlockFormat kFormat, Rounding kRounding>
__device__ inline std::uint16_t scale_of(const float (&values)[kOctet]) {
    if (kFormat == BlockFormat::sign && kRounding == Rounding::nearest) {
        return arith::scale_of_mean(mean_magnitude(values));
    }
    constexpr float kOneOverLimit = 1.0F / static_cast<float>(arith::largest_code(kFormat));
    return arith::scale_of_largest(largest_of_block(values), kOneOverLimit);
}

// --- Codes ---------------------------------------------------------------------------------------

// q8, q4: the codes; sign: 1 for negative.
template <BlockFormat kFormat, Rounding kRounding>
__device__ inline void code_octet(const float (&values)[kOctet], std::uint16_t scale,
                                  arith::TileKey key, std::uint32_t index,
                                  std::int32_t (&codes)[kOctet]) {
    constexpr bool kIsStochastic = kRounding == Rounding::stochastic;
    const float per_scale = arith::per_scale(scale);
    const bool has_codes = arith::has_block_codes(scale);
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        const float dither =
            kIsStochastic ? arith::dither_of(arith::rounding_bits(key, index + i)) : 0.0F;
        if (kFormat == BlockFormat::sign) {
            const std::uint32_t bit =
                kIsStochastic ? arith::dithered_sign_bit(values[i], 0.5F * per_scale, dither)
                              : arith::sign_bit(values[i]);
            codes[i] = scale == arith::kNanScale ? 0 : static_cast<std::int32_t>(bit);
        } else {
            constexpr std::int32_t kLimit = arith::largest_code(kFormat);
            const std::int32_t code = arith::code_of(values[i], per_scale, dither, kLimit);
            codes[i] = has_codes ? code : 0;
        }
    }
}

__device__ inline std::uint32_t bytes_of(const std::int32_t* codes) {
    std::uint32_t word = 0;
#pragma unroll
    for (unsigned i = 0; i < 4; ++i) {
        word |= (static_cast<std::uint32_t>(codes[i]) & 0xFFU) << (8 * i);
    }
    return word;
}

// Expands the four lowest nibbles to bytes.
__device__ inline std::uint32_t spread(std::uint32_t nibbles) {
    const std::uint32_t pairs = (nibbles | (nibbles << 8U)) & 0x00FF00FFU;
    return (pairs | (pairs << 4U)) & 0x0F0F0F0FU;
}

// `codes_of_piece`: the piece's codes in the payload. `octet`: position in the piece.
template <BlockFormat kFormat>
__device__ inline void store_codes(const std::int32_t (&codes)[kOctet], unsigned octet,
                                   std::byte* codes_of_piece) {
    if (kFormat == BlockFormat::q8) {
        reinterpret_cast<uint2*>(codes_of_piece)[octet] =
            make_uint2(bytes_of(codes), bytes_of(codes + 4));
    } else if (kFormat == BlockFormat::q4) {
        std::uint32_t nibbles = 0;
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            nibbles |= (static_cast<std::uint32_t>(codes[i]) & 0xFU) << (4 * i);
        }
        // A byte holds an element of the block's first half and one of its second half.
        const std::uint32_t others = __shfl_xor_sync(kEveryLane, nibbles, kBlockThreads / 2);
        const unsigned thread = octet % kBlockThreads;
        const bool is_second = thread >= kBlockThreads / 2;
        const std::uint32_t low = is_second ? others >> 16U : nibbles & 0xFFFFU;
        const std::uint32_t high = is_second ? nibbles >> 16U : others & 0xFFFFU;
        const unsigned word = octet / kBlockThreads * kBlockThreads +
                              thread % (kBlockThreads / 2) * 2 + (is_second ? 1U : 0U);
        reinterpret_cast<std::uint32_t*>(codes_of_piece)[word] = spread(low) | (spread(high) << 4U);
    } else {
        std::uint32_t bits = 0;
#pragma unroll
        for (unsigned i = 0; i < kOctet; ++i) {
            bits |= static_cast<std::uint32_t>(codes[i]) << i;
        }
        codes_of_piece[octet] = static_cast<std::byte>(bits);
    }
}

// --- Kernels -------------------------------------------------------------------------------------

template <BlockFormat kFormat, Rounding kRounding>
__global__ void __launch_bounds__(kThreads) encode(BlockEncoding e) {
    __shared__ double sums[kThreads / kWarp];
    const unsigned piece = blockIdx.x % kTilePieces;
    const unsigned place = blockIdx.x / kTilePieces;
    const unsigned tile = e.source.tile_at(place);
    const std::size_t from = tile * shard::kTileElems + piece * arith::kPieceElems;
    const arith::TileKey key = e.key_of<kRounding>(tile);
    std::byte* payload = e.payloads + place * e.payload_bytes;
    std::byte* codes_of_piece = payload + piece * arith::piece_code_bytes(kFormat);
    auto* scales =
        reinterpret_cast<std::uint16_t*>(payload + kTilePieces * arith::piece_code_bytes(kFormat)) +
        piece * kPieceBlocks;

    float values[kEach][kOctet];
    load_octets(e.source, from + threadIdx.x * kOctet, kThreads * kOctet, values);
#pragma unroll
    for (unsigned o = 0; o < kEach; ++o) {
        const unsigned octet = o * kThreads + threadIdx.x;
        const std::uint16_t scale = scale_of<kFormat, kRounding>(values[o]);
        std::int32_t codes[kOctet];
        const auto index = static_cast<std::uint32_t>(piece * arith::kPieceElems + octet * kOctet);
        code_octet<kFormat, kRounding>(values[o], scale, key, index, codes);
        store_codes<kFormat>(codes, octet, codes_of_piece);
        if (octet % kBlockThreads == 0) {
            scales[octet / kBlockThreads] = scale;
        }
    }
    if (e.squares) {
        double sum = 0;
#pragma unroll
        for (unsigned o = 0; o < kEach; ++o) {
            sum += squares_of(values[o]);
        }
        sum = sum_over_block<kThreads>(sum, sums);
        if (threadIdx.x == 0) {
            e.squares[tile * kSquareParts + piece] = sum;
        }
    }
}

template <BlockFormat kFormat>
void launch_encode(const BlockEncoding& arguments, unsigned blocks, Rounding rounding,
                   CUstream_st* stream) {
    if (rounding == Rounding::stochastic) {
        encode<kFormat, Rounding::stochastic><<<blocks, kThreads, 0, stream>>>(arguments);
    } else {
        encode<kFormat, Rounding::nearest><<<blocks, kThreads, 0, stream>>>(arguments);
    }
}

}  // namespace

void encode_blocks(const GpuEncoding& encoding, BlockCoding coding, std::size_t payload_bytes,
                   CUstream_st* stream) {
    const BlockEncoding arguments(encoding, payload_bytes);
    const auto blocks = static_cast<unsigned>(encoding.tiles * kTilePieces);
    switch (coding.format) {
        case BlockFormat::q8:
            launch_encode<BlockFormat::q8>(arguments, blocks, coding.rounding, stream);
            break;
        case BlockFormat::q4:
            launch_encode<BlockFormat::q4>(arguments, blocks, coding.rounding, stream);
            break;
        case BlockFormat::sign:
            launch_encode<BlockFormat::sign>(arguments, blocks, coding.rounding, stream);
            break;
        case BlockFormat::ternary:
            return encode_ternary(encoding, coding.rounding, payload_bytes, stream);
    }
    memory::check_launch();
}

}  // namespace nearstep::codec
