// Places of each subgroup's state in the storage of its device, see docs/formats/state-file.md.
#pragma once

#include "csd/state_format.hpp"
#include "shard/partition.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace nearstep::csd {

constexpr std::size_t kTileBytes = shard::kTileElems * sizeof(float);  // of fp32 gradients

// Offsets and sizes in bytes; all are multiples of 4096.
class StateLayout {
public:
    // The subgroups of one device in forward order. `has_gradients` adds a region for fp32
    // gradients. `spare`: places that the subgroups share beside one each, at most as many as there
    // are subgroups; 0: each subgroup has two of its own.
    StateLayout(const std::vector<shard::Subgroup>& subgroups, StateFormat format,
                bool has_gradients, std::size_t spare = 0);

    // Without spare places a subgroup's generations take turns in its own.
    static constexpr int kPlaces = 2;

    StateFormat format() const { return format_; }

    std::size_t subgroups() const { return first_tile_.size() - 1; }

    // Bytes that are reserved.
    std::size_t total_bytes() const { return total_bytes_; }

    // With spare places: how many there are, and how many more are lent while a program changes
    // masters. All have the same size.
    bool has_spare() const { return spare_ > 0; }
    std::size_t spare() const { return spare_; }
    std::size_t places() const { return subgroups() + spare_; }
    std::size_t places_with_lent() const { return kPlaces * subgroups(); }
    std::int64_t place_offset(std::size_t place) const {
        return static_cast<std::int64_t>(place * most_extent_bytes());
    }
    // The bytes that offsets may have.
    std::size_t addressed_bytes() const {
        return has_spare() ? places_with_lent() * most_extent_bytes() : total_bytes_;
    }

    // Header and payload of one place of the subgroup.
    std::size_t extent_bytes(std::size_t subgroup) const;
    std::size_t payload_bytes(std::size_t subgroup) const;
    // Requires that there are no spare places.
    std::int64_t extent_offset(std::size_t subgroup, std::int64_t generation) const;

    std::size_t gradient_bytes(std::size_t subgroup) const;
    std::int64_t gradient_offset(std::size_t subgroup) const;

    std::size_t tiles() const { return first_tile_.back(); }  // on this device
    std::size_t tiles_in(std::size_t subgroup) const {
        return first_tile_[subgroup + 1] - first_tile_[subgroup];
    }
    std::size_t most_tiles() const { return most_tiles_; }
    // Bytes of the largest extent; only a header if there are no subgroups.
    std::size_t most_extent_bytes() const;
    // Position of the subgroup's first tile among the tiles of this device.
    std::size_t first_tile(std::size_t subgroup) const { return first_tile_[subgroup]; }

    // Position of a tile of the parameter vector among those of this device, whose subgroups these
    // are.
    std::size_t local_tile(const std::vector<shard::Subgroup>& subgroups, std::size_t tile) const;

    // The subgroup that contains this tile of the device.
    std::size_t subgroup_of(std::size_t local_tile) const;

    // Digest of the device's name, its tiles and the format, for the headers.
    static std::uint64_t digest(const std::string& device,
                                const std::vector<shard::Subgroup>& subgroups, StateFormat format);

private:
    StateFormat format_;
    std::size_t spare_;
    // Bytes of one place of all earlier subgroups; one more entry than subgroups.
    std::vector<std::size_t> bytes_before_ = {0};
    std::vector<std::size_t> first_tile_ = {0};  // one more entry than subgroups
    std::size_t most_tiles_ = 0;
    std::size_t gradient_region_ = 0;
    std::size_t total_bytes_ = 0;
};

}  // namespace nearstep::csd
