#include "csd/state_layout.hpp"

#include "base/digest.hpp"
#include "base/error.hpp"
#include "store/subgroup_header.hpp"

#include <algorithm>
#include <span>

namespace nearstep::csd {

namespace {

constexpr std::size_t kPlaces = 2;

// Bytes of one place of `subgroups` subgroups with `tiles` tiles in total.
std::size_t place_bytes(std::size_t subgroups, std::size_t tiles) {
    return subgroups * store::kHeaderBytes + tiles * kStateArrays * kTileBytes;
}

}  // namespace

StateLayout::StateLayout(const std::vector<shard::Subgroup>& subgroups, bool has_gradients) {
    for (const shard::Subgroup& subgroup : subgroups) {
        first_tile_.push_back(first_tile_.back() + subgroup.tiles.size());
        most_tiles_ = std::max(most_tiles_, subgroup.tiles.size());
    }
    gradient_region_ = kPlaces * place_bytes(subgroups.size(), tiles());
    total_bytes_ = gradient_region_ + (has_gradients ? tiles() * kTileBytes : 0);
}

std::size_t StateLayout::payload_bytes(std::size_t subgroup) const {
    return tiles_in(subgroup) * kStateArrays * kTileBytes;
}

std::size_t StateLayout::extent_bytes(std::size_t subgroup) const {
    return store::kHeaderBytes + payload_bytes(subgroup);
}

std::int64_t StateLayout::extent_offset(std::size_t subgroup, std::int64_t generation) const {
    expects(generation >= 0, "generations count from 0");
    const std::size_t before = kPlaces * place_bytes(subgroup, first_tile_[subgroup]);
    const std::size_t place = static_cast<std::size_t>(generation) % kPlaces;
    return static_cast<std::int64_t>(before + place * extent_bytes(subgroup));
}

std::size_t StateLayout::gradient_bytes(std::size_t subgroup) const {
    return tiles_in(subgroup) * kTileBytes;
}

std::int64_t StateLayout::gradient_offset(std::size_t subgroup) const {
    return static_cast<std::int64_t>(gradient_region_ + first_tile_[subgroup] * kTileBytes);
}

std::uint64_t StateLayout::digest(const std::string& device,
                                  const std::vector<shard::Subgroup>& subgroups) {
    std::string facts = device;
    for (const shard::Subgroup& subgroup : subgroups) {
        facts += text(';', subgroup.tiles.begin, '-', subgroup.tiles.end);
    }
    return xxh3(std::as_bytes(std::span(facts)));
}

}  // namespace nearstep::csd
