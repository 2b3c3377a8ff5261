// The gradient codecs dense, q8 and q4, and the choice among all. Used by whoever encodes or
// decodes a gradient: exchange, csd and offload.
#include "codec/codec.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "shard/partition.hpp"

#include <algorithm>

namespace nearstep::codec {

namespace {

using arith::GradientCodec;
using arith::kPieceBlocks;
using arith::kPieceElems;
using shard::kTileElems;

static_assert(kTileElems % kPieceElems == 0, "a tile is whole pieces");
constexpr std::size_t kTilePieces = kTileElems / kPieceElems;

GradientCodec dense_codec(Dtype dtype) {
    return dtype == Dtype::fp32   ? GradientCodec::dense_fp32
           : dtype == Dtype::bf16 ? GradientCodec::dense_bf16
                                  : GradientCodec::dense_fp16;
}

// Payload: kTileElems values of a format, little-endian, rounded to nearest even.
class DenseCodec : public Codec {
public:
    explicit DenseCodec(const CodecSettings& settings)
        : Codec(settings, {dense_codec(settings.dtype)}, kTileElems * size_bytes(settings.dtype)) {}

private:
    void encode_tile(std::span<const float> tile, std::byte* payload,
                     arith::TileKey /*key*/) const override {
        kernels().narrow(tile.data(), settings().dtype, payload, tile.size());
    }
    void add_decoded(const std::byte* payload, std::size_t first,
                     std::span<float> sum) const override {
        kernels().add_widened(settings().dtype, payload + first * size_bytes(settings().dtype),
                              sum.data(), sum.size());
    }
};

// A few bits per element and one 16-bit scale per 64 elements. Payload: the codes of all pieces,
// then the scales of all blocks.
class BlockCodec : public Codec {
public:
    BlockCodec(const CodecSettings& settings, GradientCodec codec)
        : Codec(settings, {codec},
                kTilePieces *
                    (arith::piece_code_bytes(codec) + kPieceBlocks * sizeof(std::uint16_t))),
          piece_bytes_(arith::piece_code_bytes(codec)) {}

private:
    void encode_tile(std::span<const float> tile, std::byte* payload,
                     arith::TileKey key) const override {
        auto* codes = reinterpret_cast<std::uint8_t*>(payload);
        auto* scales = reinterpret_cast<std::uint16_t*>(codes + kTilePieces * piece_bytes_);
        for (std::size_t piece = 0; piece < kTilePieces; ++piece) {
            kernels().encode_piece({kernel_form().codec, settings().rounding},
                                   tile.data() + piece * kPieceElems, key,
                                   static_cast<std::uint32_t>(piece * kPieceElems),
                                   codes + piece * piece_bytes_, scales + piece * kPieceBlocks);
        }
    }
    void add_decoded(const std::byte* payload, std::size_t first,
                     std::span<float> sum) const override {
        const auto* codes = reinterpret_cast<const std::uint8_t*>(payload);
        const auto* scales =
            reinterpret_cast<const std::uint16_t*>(codes + kTilePieces * piece_bytes_);
        for (std::size_t at = 0; at < sum.size(); at += kPieceElems) {
            const std::size_t piece = (first + at) / kPieceElems;
            kernels().decode_add_piece(kernel_form().codec, codes + piece * piece_bytes_,
                                       scales + piece * kPieceBlocks, sum.data() + at);
        }
    }

    std::size_t piece_bytes_;  // of its codes
};

}  // namespace

const std::vector<std::string>& codec_names() {
    static const std::vector<std::string> names = {"dense", "topk", "q8", "q4"};
    return names;
}

bool has_block_codes(const std::string& name) { return name == "q8" || name == "q4"; }

Codec::Codec(const CodecSettings& settings, KernelForm form, std::size_t payload_bytes)
    : settings_(settings),
      kernels_(settings.kernels == nullptr ? best_kernels() : *settings.kernels),
      form_(form),
      payload_bytes_(payload_bytes) {
    settings_.kernels = nullptr;
}

std::optional<Dtype> Codec::plain_dtype() const {
    return arith::is_dense(form_.codec) ? std::optional(settings_.dtype) : std::nullopt;
}

void Codec::encode(std::span<const float> tile, std::span<std::byte> payload,
                   arith::TileKey key) const {
    expects(tile.size() == kTileElems, "a codec encodes whole tiles");
    expects(payload.size() == payload_bytes_, "a payload has its codec's size");
    encode_tile(tile, payload.data(), key);
}

void Codec::decode_add(std::span<const std::byte> payload, std::size_t first,
                       std::span<float> sum) const {
    expects(first % kPieceElems == 0 && sum.size() % kPieceElems == 0 &&
                first + sum.size() <= kTileElems,
            "a codec decodes whole pieces of a tile");
    expects(payload.size() == payload_bytes_, "a payload has its codec's size");
    add_decoded(payload.data(), first, sum);
}

std::unique_ptr<Codec> make_codec(const CodecSettings& settings) {
    if (settings.name == "dense") {
        return std::make_unique<DenseCodec>(settings);
    }
    if (settings.name == "topk") {
        return make_topk_codec(settings);
    }
    if (has_block_codes(settings.name)) {
        return std::make_unique<BlockCodec>(
            settings, settings.name == "q8" ? GradientCodec::q8 : GradientCodec::q4);
    }
    throw ConfigError(text(Term::codec, " \"", settings.name,
                           R"(" is not known: use "dense", "topk", "q8" or "q4".)"));
}

void decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> payloads,
                std::size_t first, std::span<float> sum) {
    std::fill(sum.begin(), sum.end(), 0.0F);
    for (const std::span<const std::byte> payload : payloads) {
        codec.decode_add(payload, first, sum);
    }
}

}  // namespace nearstep::codec
