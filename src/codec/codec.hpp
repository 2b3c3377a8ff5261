// Gradient codecs: a tile of 65,536 fp32 values to a payload of fixed size and back.
#pragma once

#include "base/dtype.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>

namespace nearstep::codec {

struct CodecSettings {
    std::string name = "dense";  // "dense" or "topk"
    double keep = 0.01;          // topk: share of the elements of a tile that is kept, in (0, 1]
    Dtype dtype = Dtype::bf16;   // of dense values; topk stores bf16 (fp16 where this is fp16)
};

// Stateless after construction; any thread may call. A tile's payload depends on its values alone.
class Codec {
public:
    virtual ~Codec() = default;

    virtual std::string name() const = 0;

    // Bytes of the payload of one tile.
    virtual std::size_t payload_bytes() const = 0;

    // The format of the payload's elements, if it is the tile's values and nothing else.
    virtual std::optional<Dtype> plain_dtype() const { return std::nullopt; }

    // `tile`: kTileElems values. `payload`: payload_bytes() bytes, all of them written.
    virtual void encode(std::span<const float> tile, std::span<std::byte> payload) const = 0;

    // sum[i] += decoded[i]. `sum`: kTileElems values.
    virtual void decode_add(std::span<const std::byte> payload, std::span<float> sum) const = 0;
};

// Throws ConfigError for an unknown name or a share outside (0, 1].
std::unique_ptr<Codec> make_codec(const CodecSettings& settings);

// Sum of the payloads in their order, in fp32: sum = ((0 + d0) + d1) + ... This is the definition
// of the gradient of a tile; host and devices use this one function.
void decode_sum(const Codec& codec, std::span<const std::span<const std::byte>> payloads,
                std::span<float> sum);

}  // namespace nearstep::codec
