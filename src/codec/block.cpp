#include "codec/block.hpp"

#include "base/error.hpp"
#include "codec/pieces.hpp"

namespace nearstep::codec {

namespace {

using arith::kPieceBlocks;
using arith::kPieceElems;

constexpr std::size_t kTilePieces = shard::kTileElems / kPieceElems;

}  // namespace

const char* name_of(arith::BlockFormat format) {
    return format == arith::BlockFormat::q8 ? "q8" : "q4";
}

std::size_t BlockCodec::payload_bytes() const {
    return kTilePieces *
           (arith::piece_code_bytes(coding_.format) + kPieceBlocks * sizeof(std::uint16_t));
}

KernelForm BlockCodec::kernel_form() const {
    return {coding_.format == arith::BlockFormat::q8 ? arith::GradientCodec::q8
                                                     : arith::GradientCodec::q4};
}

void BlockCodec::encode(std::span<const float> tile, std::span<std::byte> payload,
                        arith::TileKey key) const {
    expect_tile(*this, tile, payload);
    const std::size_t code_bytes = arith::piece_code_bytes(coding_.format);
    auto* codes = reinterpret_cast<std::uint8_t*>(payload.data());
    auto* scales = reinterpret_cast<std::uint16_t*>(codes + kTilePieces * code_bytes);
    for (std::size_t piece = 0; piece < kTilePieces; ++piece) {
        kernels_.encode_piece(coding_, tile.data() + piece * kPieceElems, key,
                              static_cast<std::uint32_t>(piece * kPieceElems),
                              codes + piece * code_bytes, scales + piece * kPieceBlocks);
    }
}

void BlockCodec::decode_add(std::span<const std::byte> payload, std::size_t first,
                            std::span<float> sum) const {
    expect_pieces(*this, payload, first, sum);
    const std::size_t code_bytes = arith::piece_code_bytes(coding_.format);
    const auto* codes = reinterpret_cast<const std::uint8_t*>(payload.data());
    const auto* scales = reinterpret_cast<const std::uint16_t*>(codes + kTilePieces * code_bytes);
    for (std::size_t at = 0; at < sum.size(); at += kPieceElems) {
        const std::size_t piece = (first + at) / kPieceElems;
        kernels_.decode_add_piece(coding_.format, codes + piece * code_bytes,
                                  scales + piece * kPieceBlocks, sum.data() + at);
    }
}

}  // namespace nearstep::codec
