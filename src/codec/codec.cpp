// The gradient codecs dense, q8 and q4, and the choice among all. Used by whoever encodes or
// decodes a gradient: exchange, csd and offload.
#include "codec/codec.hpp"

#include "base/error.hpp"
#include "base/wording.hpp"
#include "shard/partition.hpp"

#include <algorithm>
#include <array>
#include <iterator>

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
        : Codec(settings, KernelForm{dense_codec(settings.dtype)},
                kTileElems * size_bytes(settings.dtype)) {}

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
        : Codec(settings, KernelForm{codec},
                kTilePieces *
                    (arith::piece_code_bytes(codec) + kPieceBlocks * sizeof(std::uint16_t))),
          codec_(codec),
          piece_bytes_(arith::piece_code_bytes(codec)) {}

private:
    void encode_tile(std::span<const float> tile, std::byte* payload,
                     arith::TileKey key) const override {
        auto* codes = reinterpret_cast<std::uint8_t*>(payload);
        auto* scales = reinterpret_cast<std::uint16_t*>(codes + kTilePieces * piece_bytes_);
        for (std::size_t piece = 0; piece < kTilePieces; ++piece) {
            kernels().encode_piece({codec_, settings().rounding}, tile.data() + piece * kPieceElems,
                                   key, static_cast<std::uint32_t>(piece * kPieceElems),
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
            kernels().decode_add_piece(codec_, codes + piece * piece_bytes_,
                                       scales + piece * kPieceBlocks, sum.data() + at);
        }
    }

    GradientCodec codec_;
    std::size_t piece_bytes_;  // of its codes
};

struct CodecRow {
    const char* name;
    std::unique_ptr<Codec> (*make)(const CodecSettings& settings);
    bool has_block_codes = false;
};

// Every codec. Settings, planner, tests and fuzz targets read this table.
constexpr std::array kCodecs = {
    CodecRow{"dense",
             [](const CodecSettings& settings) -> std::unique_ptr<Codec> {
                 return std::make_unique<DenseCodec>(settings);
             }},
    CodecRow{"topk", make_topk_codec},
    CodecRow{"q8",
             [](const CodecSettings& settings) -> std::unique_ptr<Codec> {
                 return std::make_unique<BlockCodec>(settings, GradientCodec::q8);
             },
             true},
    CodecRow{"q4",
             [](const CodecSettings& settings) -> std::unique_ptr<Codec> {
                 return std::make_unique<BlockCodec>(settings, GradientCodec::q4);
             },
             true},
};

const CodecRow& row_of(const std::string& name) {
    const auto* const row = std::ranges::find(kCodecs, name, &CodecRow::name);
    if (row == kCodecs.end()) {
        std::string names;
        for (const CodecRow& known : kCodecs) {
            names += text(names.empty() ? "\"" : ", \"", known.name, "\"");
        }
        throw ConfigError(
            text(Term::codec, " \"", name, "\" is not known: use one of ", names, "."));
    }
    return *row;
}

}  // namespace

const std::vector<std::string>& codec_names() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> all;
        std::ranges::transform(kCodecs, std::back_inserter(all), &CodecRow::name);
        return all;
    }();
    return names;
}

bool has_block_codes(const std::string& name) { return row_of(name).has_block_codes; }

Codec::Codec(const CodecSettings& settings, std::optional<KernelForm> form,
             std::size_t payload_bytes)
    : settings_(settings),
      kernels_(settings.kernels == nullptr ? best_kernels() : *settings.kernels),
      form_(form),
      payload_bytes_(payload_bytes) {
    settings_.kernels = nullptr;
}

std::optional<Dtype> Codec::plain_dtype() const {
    return form_ && arith::is_dense(form_->codec) ? std::optional(settings_.dtype) : std::nullopt;
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
    return row_of(settings.name).make(settings);
}

double bytes_per_parameter(const CodecSettings& settings) {
    return static_cast<double>(make_codec(settings)->payload_bytes()) /
           static_cast<double>(kTileElems);
}

void decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> payloads,
                std::size_t first, std::span<float> sum) {
    std::ranges::fill(sum, 0.0F);
    for (const std::span<const std::byte> payload : payloads) {
        codec.decode_add(payload, first, sum);
    }
}

}  // namespace nearstep::codec
