// Gradient codecs: convert a tile of 65,536 fp32 values to a payload of fixed size and back. The
// formats are in docs/formats/gradient-payload.md.
#pragma once

#include "arith/gradient_lane.hpp"
#include "arith/state_lane.hpp"
#include "base/dtype.hpp"
#include "codec/codec_kernels.hpp"
#include "codec/kernel_form.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::codec {

// The names in the table in codec.cpp: "dense", "topk", "q8", "q4". A new codec needs a row in that
// table and a word in config::PayloadCodec.
const std::vector<std::string>& codec_names();

// True if the codec has block codes, which share one scale per block and allow stochastic rounding.
bool has_block_codes(const std::string& name);

struct CodecSettings {
    std::string name = "dense";
    double keep = 0.01;         // topk: share of a tile's elements to keep, in (0, 1]
    Dtype dtype = Dtype::bf16;  // dense: value format; topk: bf16 unless this is fp16
    arith::Rounding rounding = arith::Rounding::nearest;  // of block codes
    const Kernels* kernels = nullptr;                     // null: the fastest on this CPU
};

// Stateless after construction; any thread may call. A payload depends on the tile's values and,
// with stochastic rounding, on the key.
class Codec {
public:
    Codec(const Codec&) = delete;
    Codec& operator=(const Codec&) = delete;
    virtual ~Codec() = default;

    const std::string& name() const { return settings_.name; }

    // Settings from which make_codec() builds an equal codec on any CPU.
    const CodecSettings& settings() const { return settings_; }

    // Size of one tile's payload.
    std::size_t payload_bytes() const { return payload_bytes_; }

    // Tells a GPU's or card's kernel the payload format; nullopt if only hosts encode and decode
    // this codec.
    const std::optional<KernelForm>& kernel_form() const { return form_; }

    // Element format if the payload is just the tile's values; else none.
    std::optional<Dtype> plain_dtype() const;

    // `tile`: kTileElems values. `payload`: payload_bytes() bytes, aligned to 4, all overwritten.
    // `key`: identifies the tile and the step, see arith::tile_key().
    void encode(std::span<const float> tile, std::span<std::byte> payload,
                arith::TileKey key = {0, 0}) const;

    // sum[i] += decoded[first + i]. `first` and the size of `sum` are multiples of kPieceElems.
    void decode_add(std::span<const std::byte> payload, std::size_t first,
                    std::span<float> sum) const;

protected:
    Codec(const CodecSettings& settings, std::optional<KernelForm> form, std::size_t payload_bytes);

    const Kernels& kernels() const { return kernels_; }

private:
    // encode_tile() and add_decoded() do the work of encode() and decode_add(), which have checked
    // the arguments.
    virtual void encode_tile(std::span<const float> tile, std::byte* payload,
                             arith::TileKey key) const = 0;
    virtual void add_decoded(const std::byte* payload, std::size_t first,
                             std::span<float> sum) const = 0;

    CodecSettings settings_;
    Kernels kernels_;
    std::optional<KernelForm> form_;
    std::size_t payload_bytes_;
};

// Throws ConfigError for an unknown name or a share outside (0, 1].
std::unique_ptr<Codec> make_codec(const CodecSettings& settings);

// The payload bytes per parameter of a codec of that name. Throws as make_codec() does.
double bytes_per_parameter(const CodecSettings& settings);

// Makes the codec `topk`. It keeps the largest magnitudes of a tile, as the paper's SmartComp does,
// with a fixed quota per tile: exactly the q = ceil(keep x 65,536) largest. Of equal magnitudes the
// one with the lower index is kept; NaN ranks above infinity. Payload: q ascending 16-bit indices,
// then q 16-bit values, little-endian: 4 bytes per kept element. The paper counts volume: keeping 1
// % of the elements is its "2 %".
std::unique_ptr<Codec> make_topk_codec(const CodecSettings& settings);

// Decodes the payloads and adds them in order, in fp32: sum = ((0 + d0) + d1) + ..., starting at
// element `first`. This defines the gradient of a tile; host and devices both use this function.
void decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> payloads,
                std::size_t first, std::span<float> sum);

}  // namespace nearstep::codec
