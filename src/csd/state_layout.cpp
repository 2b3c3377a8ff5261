// Offsets of subgroups in a device's storage. Used by StateVolume and by plans of space.
#include "csd/state_layout.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "store/subgroup_header.hpp"

#include <algorithm>
#include <span>

namespace nearstep::csd {

StateLayout::StateLayout(const std::vector<shard::Subgroup>& subgroups, StateFormat format,
                         bool has_gradients, std::size_t spare)
    : format_(format), spare_(std::min(spare, subgroups.size())) {
    expects(spare == 0 || !has_gradients, "state that shares places has no gradients beside it");
    for (const shard::Subgroup& subgroup : subgroups) {
        first_tile_.push_back(first_tile_.back() + subgroup.tiles.size());
        most_tiles_ = std::max(most_tiles_, subgroup.tiles.size());
        bytes_before_.push_back(bytes_before_.back() + store::kHeaderBytes +
                                state_bytes(format, subgroup.tiles.size()));
    }
    gradient_region_ = kPlaces * bytes_before_.back();
    total_bytes_ = has_spare() ? places() * most_extent_bytes()
                               : gradient_region_ + (has_gradients ? tiles() * kTileBytes : 0);
}

std::size_t StateLayout::payload_bytes(std::size_t subgroup) const {
    return state_bytes(format_, tiles_in(subgroup));
}

std::size_t StateLayout::extent_bytes(std::size_t subgroup) const {
    return store::kHeaderBytes + payload_bytes(subgroup);
}

std::size_t StateLayout::most_extent_bytes() const {
    return store::kHeaderBytes + state_bytes(format_, most_tiles_);
}

std::int64_t StateLayout::extent_offset(std::size_t subgroup, std::int64_t generation) const {
    expects(generation >= 0, "generations count from 0");
    expects(!has_spare(), "each subgroup has two places of its own");
    const std::size_t before = kPlaces * bytes_before_[subgroup];
    const std::size_t place = static_cast<std::size_t>(generation) % kPlaces;
    return static_cast<std::int64_t>(before + place * extent_bytes(subgroup));
}

std::size_t StateLayout::gradient_bytes(std::size_t subgroup) const {
    return tiles_in(subgroup) * kTileBytes;
}

std::int64_t StateLayout::gradient_offset(std::size_t subgroup) const {
    return static_cast<std::int64_t>(gradient_region_ + first_tile_[subgroup] * kTileBytes);
}

std::size_t StateLayout::local_tile(const std::vector<shard::Subgroup>& subgroups,
                                    std::size_t tile) const {
    const auto after = std::ranges::upper_bound(
        subgroups, tile, {}, [](const shard::Subgroup& s) { return s.tiles.begin; });
    expects(after != subgroups.begin() && tile < (after - 1)->tiles.end,
            "the tile belongs to the device");
    const auto subgroup = static_cast<std::size_t>(after - subgroups.begin()) - 1;
    return first_tile(subgroup) + tile - (after - 1)->tiles.begin;
}

std::size_t StateLayout::subgroup_of(std::size_t local_tile) const {
    expects(local_tile < tiles(), "the tile belongs to the device");
    const auto after = std::ranges::upper_bound(first_tile_, local_tile);
    return static_cast<std::size_t>(after - first_tile_.begin()) - 1;
}

std::uint64_t StateLayout::digest(const std::string& device,
                                  const std::vector<shard::Subgroup>& subgroups,
                                  StateFormat format) {
    std::string facts = device;
    for (const shard::Subgroup& subgroup : subgroups) {
        facts += text(';', subgroup.tiles.begin, '-', subgroup.tiles.end);
    }
    facts += text(';', name_of(format));
    return xxh3(std::as_bytes(std::span(facts)));
}

}  // namespace nearstep::csd
