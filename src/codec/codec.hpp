// Gradient codecs: a tile of 65,536 fp32 values to a payload of fixed size and back.
// docs/gradient-payload.md has the formats.
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

// "dense", "topk", "q8", "q4", "ternary", "sign".
const std::vector<std::string>& codec_names();

// The format of those that code in blocks.
std::optional<arith::BlockFormat> find_block_format(const std::string& name);

// True of those whose codes share a scale in blocks: they can round stochastically.
bool has_block_codes(const std::string& name);

// "nearest" or "stochastic". Throws ConfigError naming the two.
arith::Rounding parse_rounding(const std::string& name);

struct CodecSettings {
    std::string name = "dense";
    double keep = 0.01;         // topk: share of the elements of a tile that is kept, in (0, 1]
    Dtype dtype = Dtype::bf16;  // of dense values; topk stores bf16 (fp16 where this is fp16)
    arith::Rounding rounding = arith::Rounding::nearest;  // of block codes
    const Kernels* kernels = nullptr;                     // null: the fastest of this CPU
};

// How a kernel is told what its payloads are.
struct KernelForm {
    arith::GradientCodec codec = arith::GradientCodec::dense_bf16;
    std::uint32_t kept = 0;  // topk: elements of a tile; else 0
};

// Stateless after construction; any thread may call. A tile's payload depends on its values and,
// with stochastic rounding, on its key.
class Codec {
public:
    virtual ~Codec() = default;

    virtual std::string name() const = 0;

    // What make_codec() makes its like from, on any CPU.
    virtual CodecSettings settings() const = 0;

    // Bytes of the payload of one tile.
    virtual std::size_t payload_bytes() const = 0;

    // The format of the payload's elements, if it is the tile's values and nothing else.
    virtual std::optional<Dtype> plain_dtype() const { return std::nullopt; }

    virtual KernelForm kernel_form() const = 0;

    // `tile`: kTileElems values. `payload`: payload_bytes() bytes, aligned to 4, all of them
    // written. `key`: of the tile in this step, see arith::tile_key().
    virtual void encode(std::span<const float> tile, std::span<std::byte> payload,
                        arith::TileKey key = {0, 0}) const = 0;

    // sum[i] += decoded[first + i]. `first` and the size of `sum` are multiples of kPieceElems.
    virtual void decode_add(std::span<const std::byte> payload, std::size_t first,
                            std::span<float> sum) const = 0;
};

// Throws ConfigError for an unknown name or a share outside (0, 1].
std::unique_ptr<Codec> make_codec(const CodecSettings& settings);

// Sum of the payloads in their order, in fp32: sum = ((0 + d0) + d1) + ..., of the elements from
// `first` on. This is the definition of the gradient of a tile; host and devices use this one
// function.
void decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> payloads,
                std::size_t first, std::span<float> sum);

}  // namespace nearstep::codec
