// Gradient codecs: convert a tile of 65,536 fp32 values to a payload of fixed size and back. The
// formats are in docs/formats/gradient-payload.md.
#pragma once

#include "arith/gradient_lane.hpp"
#include "arith/state_lane.hpp"
#include "base/dtype.hpp"
#include "codec/kernels.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace nearstep::codec {

// "dense", "topk", "q8", "q4".
const std::vector<std::string>& codec_names();

// The block format of a codec; none if it has no block codes.
std::optional<arith::BlockFormat> find_block_format(const std::string& name);

// True if the codec has block codes, which share one scale per block and allow stochastic rounding.
bool has_block_codes(const std::string& name);

// "nearest" or "stochastic". Throws ConfigError for any other name.
arith::Rounding parse_rounding(const std::string& name);

struct CodecSettings {
    std::string name = "dense";
    double keep = 0.01;         // topk: share of a tile's elements to keep, in (0, 1]
    Dtype dtype = Dtype::bf16;  // dense: value format; topk: bf16 unless this is fp16
    arith::Rounding rounding = arith::Rounding::nearest;  // of block codes
    const Kernels* kernels = nullptr;                     // null: the fastest on this CPU
};

// Tells a kernel the payload format.
struct KernelForm {
    arith::GradientCodec codec = arith::GradientCodec::dense_bf16;
    std::uint32_t kept = 0;  // topk: elements kept per tile; else 0
};

// Stateless after construction; any thread may call. A payload depends on the tile's values and,
// with stochastic rounding, on the key.
class Codec {
public:
    virtual ~Codec() = default;

    virtual std::string name() const = 0;

    // Settings from which make_codec() builds an equal codec on any CPU.
    virtual CodecSettings settings() const = 0;

    // Size of one tile's payload.
    virtual std::size_t payload_bytes() const = 0;

    // Element format if the payload is just the tile's values; else none.
    virtual std::optional<Dtype> plain_dtype() const { return std::nullopt; }

    virtual KernelForm kernel_form() const = 0;

    // `tile`: kTileElems values. `payload`: payload_bytes() bytes, aligned to 4, all overwritten.
    // `key`: identifies the tile and the step, see arith::tile_key().
    virtual void encode(std::span<const float> tile, std::span<std::byte> payload,
                        arith::TileKey key = {0, 0}) const = 0;

    // sum[i] += decoded[first + i]. `first` and the size of `sum` are multiples of kPieceElems.
    virtual void decode_add(std::span<const std::byte> payload, std::size_t first,
                            std::span<float> sum) const = 0;
};

// Throws ConfigError for an unknown name or a share outside (0, 1].
std::unique_ptr<Codec> make_codec(const CodecSettings& settings);

// Decodes the payloads and adds them in order, in fp32: sum = ((0 + d0) + d1) + ..., starting at
// element `first`. This defines the gradient of a tile; host and devices both use this function.
void decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> payloads,
                std::size_t first, std::span<float> sum);

}  // namespace nearstep::codec
