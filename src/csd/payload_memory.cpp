// Keeps gradient payloads until the next update. Used by emulated devices and gpu_device.cpp.
#include "csd/payload_memory.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "base/units.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::csd {

namespace {

constexpr std::size_t kCacheLine = 64;

}  // namespace

std::size_t PayloadMemory::tile_bytes(std::size_t most_payload_bytes, std::size_t sources) {
    return sources * round_up(most_payload_bytes, kCacheLine);
}

PayloadMemory::PayloadMemory(const codec::Codec& codec, std::size_t most_payload_bytes,
                             std::size_t tiles, std::size_t sources, Place place)
    : codec_(&codec),
      tiles_(tiles),
      sources_(sources),
      stride_(round_up(std::max(most_payload_bytes, codec.payload_bytes()), kCacheLine)),
      memory_(place == Place::own ? bytes() : 0),
      digests_(place == Place::logged ? tiles : 0) {}

void PayloadMemory::lie_in(memory::Buffer memory, std::size_t begin) {
    expects(memory.size() >= begin + bytes(), "there is room for all payloads");
    memory_ = std::move(memory);
    begin_ = begin;
}

void PayloadMemory::use(const codec::Codec& codec) {
    expects(codec.payload_bytes() <= stride_, "there is room for the codec's payloads");
    codec_ = &codec;
}

std::size_t PayloadMemory::put(std::size_t tile, Payloads payloads) {
    expects(payloads.size() == sources_, "a tile has one payload per source");
    for (std::size_t source = 0; source < sources_; ++source) {
        expects(payloads[source].size() == codec_->payload_bytes(),
                "a payload has its codec's size");
        const auto place = memory_.span().subspan(offset_of(tile, source), codec_->payload_bytes());
        std::ranges::copy(payloads[source], place.begin());
    }
    if (!digests_.empty()) {
        digests_[tile] = xxh3(of_tile(tile));
    }
    return sources_ * codec_->payload_bytes();
}

const void* PayloadMemory::piece_of(std::size_t tile, std::size_t first,
                                    std::span<float> piece) const {
    if (is_single(Dtype::bf16)) {
        return of(tile, 0).data() + first * size_bytes(Dtype::bf16);
    }
    sum(tile, first, piece);
    return piece.data();
}

void PayloadMemory::sum(std::size_t tile, std::size_t first, std::span<float> sum) const {
    std::ranges::fill(sum, 0.0F);
    for (std::size_t source = 0; source < sources_; ++source) {
        codec_->decode_add(of(tile, source), first, sum);
    }
}

}  // namespace nearstep::csd
