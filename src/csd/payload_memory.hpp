// The part of a device's memory, or of its log, that holds the gradient payloads of the next
// update.
#pragma once

#include "codec/codec.hpp"
#include "memory/buffer.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace nearstep::csd {

using Payloads = std::span<const std::span<const std::byte>>;

// Holds `sources` payloads for each tile of the device. Different threads may use different tiles.
class PayloadMemory {
public:
    // own: this has memory of its own. logged: lie_in() gives memory before the first put(), which
    // digests the payloads.
    enum class Place { own, logged };

    // The codec outlives this. `most_payload_bytes` is the largest among the codecs that use() may
    // name.
    PayloadMemory(const codec::Codec& codec, std::size_t most_payload_bytes, std::size_t tiles,
                  std::size_t sources, Place place = Place::own);

    // Bytes for the payloads of one tile.
    static std::size_t tile_bytes(std::size_t most_payload_bytes, std::size_t sources);

    // Payloads lie in `memory`, which has room for bytes() from `begin` on.
    void lie_in(memory::Buffer memory, std::size_t begin);

    // Sets the codec of all payloads put from now on; it outlives this.
    void use(const codec::Codec& codec);

    // Copies the payloads of one tile, one per source in rank order. Returns their total bytes.
    std::size_t put(std::size_t tile, Payloads payloads);

    // True if a tile's gradient is one payload that stores its values in this format.
    bool is_single(Dtype dtype) const { return sources_ == 1 && codec_->plain_dtype() == dtype; }

    const codec::Codec& codec() const { return *codec_; }

    // All payloads: of each tile, one per source, stride() bytes apart.
    std::span<const std::byte> span() const { return memory_.span().subspan(begin_, bytes()); }
    std::span<std::byte> span() { return memory_.span().subspan(begin_, bytes()); }
    // Returns the memory of lie_in(), which begins with the payloads and has whole pages.
    std::span<const std::byte> pages() const { return memory_.span(); }
    std::size_t stride() const { return stride_; }
    std::size_t tiles() const { return tiles_; }
    std::size_t sources() const { return sources_; }
    std::size_t bytes() const { return tiles_ * sources_ * stride_; }

    std::span<const std::byte> of(std::size_t tile, std::size_t source) const {
        return memory_.span().subspan(offset_of(tile, source), codec_->payload_bytes());
    }
    // All payloads of a tile, with what lies between them.
    std::span<const std::byte> of_tile(std::size_t tile) const {
        return memory_.span().subspan(offset_of(tile, 0), sources_ * stride_);
    }

    // XXH3 of of_tile(), of each tile. Only of payloads that are logged.
    std::span<const std::uint64_t> digests() const { return digests_; }

    // Returns a tile's gradient from element `first` on, in the format piece_dtype(): a single bf16
    // payload itself, because engines widen it, and else the sum, which is written to `piece`.
    const void* piece_of(std::size_t tile, std::size_t first, std::span<float> piece) const;
    Dtype piece_dtype() const { return is_single(Dtype::bf16) ? Dtype::bf16 : Dtype::fp32; }

    // Writes the sum of a tile's payloads from element `first` on to `sum`, in whole pieces.
    void sum(std::size_t tile, std::size_t first, std::span<float> sum) const;

private:
    std::size_t offset_of(std::size_t tile, std::size_t source) const {
        return begin_ + (tile * sources_ + source) * stride_;
    }

    const codec::Codec* codec_;
    std::size_t tiles_;
    std::size_t sources_;
    std::size_t stride_;  // bytes from one payload to the next
    memory::Buffer memory_;
    std::size_t begin_ = 0;  // in the memory
    std::vector<std::uint64_t> digests_;
};

}  // namespace nearstep::csd
