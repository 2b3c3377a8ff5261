// The part of an emulated device's own memory that holds the gradient payloads of the next update.
#pragma once

#include "codec/codec.hpp"
#include "memory/buffer.hpp"

#include <cstddef>
#include <span>

namespace nearstep::csd {

using Payloads = std::span<const std::span<const std::byte>>;

// `sources` payloads for each tile of the device. Different tiles may be used from different
// threads.
class PayloadMemory {
public:
    // The codec outlives this. `most_payload_bytes`: of the codecs that use() may name.
    PayloadMemory(const codec::Codec& codec, std::size_t most_payload_bytes, std::size_t tiles,
                  std::size_t sources);

    // The payloads put from now on are of this codec, which outlives this.
    void use(const codec::Codec& codec);

    // Copies the payloads of one tile, one per source in rank order; returns their bytes.
    std::size_t put(std::size_t tile, Payloads payloads);

    // True if a tile's gradient is one payload that holds its values in this format.
    bool is_single(Dtype dtype) const { return sources_ == 1 && codec_->plain_dtype() == dtype; }

    std::span<const std::byte> of(std::size_t tile, std::size_t source) const {
        return memory_.span().subspan(offset_of(tile, source), codec_->payload_bytes());
    }

    // The gradient of a tile from element `first` on: `sum` gets the sum of its payloads, in whole
    // pieces. `list` has `sources` entries to work with.
    void sum(std::size_t tile, std::size_t first, std::span<std::span<const std::byte>> list,
             std::span<float> sum) const;

private:
    std::size_t offset_of(std::size_t tile, std::size_t source) const {
        return (tile * sources_ + source) * stride_;
    }

    const codec::Codec* codec_;
    std::size_t sources_;
    std::size_t stride_;  // from payload to payload
    memory::Buffer memory_;
};

}  // namespace nearstep::csd
