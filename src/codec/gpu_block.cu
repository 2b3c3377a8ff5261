// Block codes on a GPU. A thread block encodes one piece. Eight neighbouring threads
// share a block of 64 elements, eight each.
#include "codec/gpu_kernels.hpp"
#include "codec/gpu_tile.cuh"
#include "memory/cuda_call.hpp"

namespace nearstep::codec {

namespace {

using arith::BlockFormat;
using arith::kPieceBlocks;
using arith::kScaleElems;
using arith::Rounding;

constexpr unsigned kThreads = 256;
constexpr unsigned kEach = kPieceOctets / kThreads;

// Neighbouring threads that share a block of 64 elements, eight elements each.
constexpr unsigned kBlockThreads = arith::kScaleElems / kOctet;

struct BlockEncoding {
    TileSource source;
    std::byte* payloads;
    double* squares;
    std::uint64_t random_key;
    std::uint64_t first_tile;
    const std::uint32_t* places;
    std::size_t payload_bytes;

    BlockEncoding(const GpuEncoding& encoding, std::size_t bytes)
        : source(encoding),
          payloads(encoding.payloads),
          squares(encoding.squares),
          random_key(encoding.random_key),
          first_tile(encoding.first_tile),
          places(encoding.places),
          payload_bytes(bytes) {}

    template <arith::Rounding kRounding>
    __device__ arith::TileKey key_of(unsigned tile) const {
        if (kRounding == arith::Rounding::nearest) {
            return {0, 0};
        }
        return arith::tile_key(random_key, first_tile + (places ? places[tile] : tile));
    }
};

// Bits of the block's largest magnitude; returned in all its threads.
__device__ inline std::uint32_t largest_of_block(const float (&values)[kOctet]) {
    std::uint32_t largest = 0;
#pragma unroll
    for (const float value : values) {
        largest = max(largest, arith::magnitude_bits(value));
    }
#pragma unroll
    for (unsigned step = kBlockThreads / 2; step > 0; step /= 2) {
        largest = max(largest, __shfl_xor_sync(kEveryLane, largest, step));
    }
    return largest;
}

template <BlockFormat kFormat, Rounding kRounding>
__device__ inline void code_octet(const float (&values)[kOctet], std::uint16_t scale,
                                  arith::TileKey key, std::uint32_t index,
                                  std::int32_t (&codes)[kOctet]) {
    const float per_scale = arith::per_scale(scale);
    const bool has_codes = arith::has_block_codes(scale);
#pragma unroll
    for (unsigned i = 0; i < kOctet; ++i) {
        const float dither = kRounding == Rounding::stochastic
                                 ? arith::dither_of(arith::rounding_bits(key, index + i))
                                 : 0.0F;
        const std::int32_t code =
            arith::code_of(values[i], per_scale, dither, arith::largest_code(kFormat));
        codes[i] = has_codes ? code : 0;
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
    } else {
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
    }
}

template <BlockFormat kFormat, Rounding kRounding>
__global__ void __launch_bounds__(kThreads) encode(BlockEncoding e) {
    constexpr float kOneOverLimit = 1.0F / static_cast<float>(arith::largest_code(kFormat));
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
        const std::uint16_t scale =
            arith::scale_of_largest(largest_of_block(values[o]), kOneOverLimit);
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
    if (coding.format == BlockFormat::q8) {
        launch_encode<BlockFormat::q8>(arguments, blocks, coding.rounding, stream);
    } else {
        launch_encode<BlockFormat::q4>(arguments, blocks, coding.rounding, stream);
    }
    memory::check_launch();
}

}  // namespace nearstep::codec
