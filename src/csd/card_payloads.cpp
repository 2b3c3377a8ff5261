// Keeps and sends a card's gradient payloads. Used by CardDevice.
#include "csd/card_payloads.hpp"

#include "base/error.hpp"
#include "base/units.hpp"

#include <algorithm>
#include <utility>

namespace nearstep::csd {

namespace {

// A buffer holds several subgroups up to this size, or a single larger one.
constexpr std::size_t kUsualBufferBytes = 256 * MiB;

}  // namespace

CardPayloads::CardPayloads(fpga::Card& card, const StateLayout& layout, std::size_t subgroups,
                           std::size_t most_payload_bytes, std::size_t sources)
    : layout_(&layout),
      sources_(sources),
      stride_(round_up(most_payload_bytes, fpga::kWordBytes)),
      places_(subgroups) {
    std::vector<std::size_t> sizes;
    for (std::size_t subgroup = 0; subgroup < subgroups; ++subgroup) {
        const std::size_t bytes = subgroup_bytes(subgroup);
        if (sizes.empty() || sizes.back() + bytes > kUsualBufferBytes) {
            sizes.push_back(0);
        }
        places_[subgroup] = {sizes.size() - 1, sizes.back()};
        sizes.back() += bytes;
    }
    for (const std::size_t bytes : sizes) {
        if (bytes > fpga::kMostBufferBytes) {
            throw ConfigError(text("The payloads of one subgroup take ", bytes,
                                   " bytes, and a buffer of a card has ", fpga::kMostBufferBytes,
                                   " at most: lower csd.subgroup_tiles."));
        }
        buffers_.push_back(
            card.allocate(fpga::BufferKind::normal, bytes, fpga::kKernels[0], "payload_heads",
                          "gradients: they must fit its memory, so use more cards or a codec with "
                          "smaller payloads"));
    }
}

std::size_t CardPayloads::subgroup_bytes(std::size_t subgroup) const {
    return layout_->tiles_in(subgroup) * tile_bytes();
}

std::size_t CardPayloads::put(std::size_t subgroup, std::size_t tile, Payloads payloads) {
    expects(payloads.size() == sources_, "a tile has one payload per source");
    OpenPlace& place = places_[subgroup];
    const std::size_t bytes = codec_->payload_bytes();
    const std::size_t first = tile - layout_->first_tile(subgroup);
    expects(bytes <= stride_, "there is room for the codec's payloads");
    const auto memory =
        buffers_[place.buffer].host().subspan(place.offset + first * tile_bytes(), tile_bytes());
    for (std::size_t source = 0; source < sources_; ++source) {
        expects(payloads[source].size() == bytes, "a payload has its codec's size");
        const auto room = memory.subspan(source * stride_, stride_);
        std::ranges::copy(payloads[source], room.begin());
        std::ranges::fill(room.subspan(bytes), std::byte{0});
    }
    const bool is_first = place.unsent.size() == 0;
    place.unsent.begin = is_first ? first : std::min(place.unsent.begin, first);
    place.unsent.end = is_first ? first + 1 : std::max(place.unsent.end, first + 1);
    if (++place.tiles_put == layout_->tiles_in(subgroup)) {
        place.tiles_put = 0;
        send(place);
    }
    return tile_bytes();
}

void CardPayloads::send(OpenPlace& place) {
    const shard::TileRange tiles = std::exchange(place.unsent, {});
    sending_.add(worker_.submit(
        [&buffer = buffers_[place.buffer], offset = place.offset + tiles.begin * tile_bytes(),
         bytes = tiles.size() * tile_bytes()] { buffer.to_card(offset, bytes); }));
}

void CardPayloads::finish() {
    for (OpenPlace& place : places_) {
        if (place.unsent.size() > 0) {
            send(place);
        }
    }
    sending_.wait();
}

PayloadPlace CardPayloads::place_of(std::size_t subgroup) const {
    const OpenPlace& place = places_[subgroup];
    return {&buffers_[place.buffer], place.offset, static_cast<std::uint32_t>(stride_)};
}

}  // namespace nearstep::csd
