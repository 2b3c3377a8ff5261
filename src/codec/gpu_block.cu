// Block codes on a GPU. Eight neighbouring threads share a block of 64 elements, eight each.
// Started by gpu_codec.cpp.
#include "codec/gpu_tile.cuh"

namespace nearstep::codec {

using arith::GradientCodec;
using arith::kPieceBlocks;
using arith::kScaleElems;
using arith::Rounding;

// Neighbouring threads that share a block of 64 elements, eight elements each.
constexpr unsigned kBlockThreads = arith::kScaleElems / kOctet;

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

template <GradientCodec kCodec, Rounding kRounding>
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
            arith::code_of(values[i], per_scale, dither, arith::largest_code(kCodec));
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
template <GradientCodec kCodec>
__device__ inline void store_codes(const std::int32_t (&codes)[kOctet], unsigned octet,
                                   std::byte* codes_of_piece) {
    if (kCodec == GradientCodec::q8) {
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

template <GradientCodec kCodec, Rounding kRounding>
__global__ void __launch_bounds__(kPieceThreads) encode(GpuEncoding e) {
    constexpr float kOneOverLimit = 1.0F / static_cast<float>(arith::largest_code(kCodec));
    constexpr std::size_t kTileCodeBytes = kTilePieces * arith::piece_code_bytes(kCodec);
    constexpr std::size_t kScaleBytes = kPieceBlocks * sizeof(std::uint16_t);
    const Piece own = load_piece(e);
    const auto key =
        kRounding == Rounding::nearest
            ? arith::TileKey{0, 0}
            : arith::tile_key(e.random_key,
                              e.first_tile + (e.places ? e.places[own.tile] : own.tile));
    std::byte* payload = e.payloads + own.place * (kTileCodeBytes + kTilePieces * kScaleBytes);
    std::byte* codes_of_piece = payload + own.piece * arith::piece_code_bytes(kCodec);
    auto* scales =
        reinterpret_cast<std::uint16_t*>(payload + kTileCodeBytes + own.piece * kScaleBytes);
#pragma unroll
    for (unsigned o = 0; o < kEach; ++o) {
        const unsigned octet = Piece::octet(o);
        const std::uint16_t scale =
            arith::scale_of_largest(largest_of_block(own.values[o]), kOneOverLimit);
        std::int32_t codes[kOctet];
        const auto index =
            static_cast<std::uint32_t>(own.piece * arith::kPieceElems + octet * kOctet);
        code_octet<kCodec, kRounding>(own.values[o], scale, key, index, codes);
        store_codes<kCodec>(codes, octet, codes_of_piece);
        if (octet % kBlockThreads == 0) {
            scales[octet / kBlockThreads] = scale;
        }
    }
}

}  // namespace nearstep::codec
