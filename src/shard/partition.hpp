// Assigns tiles to their owners: pure arithmetic, the same on every rank.
//
// The parameter vector is cut into tiles of 65,536; the last one is padded. A stripe is a range of
// consecutive tiles, of which every device gets one run, proportional to its speed. So every block
// lies on all devices, and all of them work on block 0 first. A device's run in one stripe is a
// subgroup: it is read, updated and written as one. Neighbouring runs are on different nodes, so
// that a block of few subgroups still uses the network links of as many nodes.
#pragma once

#include "shard/element_range.hpp"
#include "shard/tile.hpp"

#include <cstddef>
#include <vector>

namespace nearstep::shard {

// Number of tiles that hold `parameters` parameters, the last one padded.
constexpr std::size_t tiles_of(std::size_t parameters) {
    return (parameters + kTileElems - 1) / kTileElems;
}

// A half-open range of consecutive tiles.
struct TileRange {
    std::size_t begin = 0;
    std::size_t end = 0;

    std::size_t size() const { return end - begin; }
    friend bool operator==(const TileRange&, const TileRange&) = default;
};

struct Subgroup {
    int device = 0;         // numbered over all ranks, those of rank 0 first
    std::size_t index = 0;  // among its device's subgroups, in forward order
    TileRange tiles;
};

struct PartitionSettings {
    std::size_t parameters = 0;
    std::vector<double> speeds;       // one per device, > 0, any unit
    std::vector<int> nodes = {};      // of each device; empty: all are in one
    std::size_t subgroup_tiles = 16;  // largest subgroup, > 0
    // Stripes are narrowed until there are about this many, but not below one tile per device.
    std::size_t least_stripes = 4;
};

class Partition {
public:
    // Throws ConfigError if there is no device or a speed is not positive.
    explicit Partition(const PartitionSettings& settings);

    std::size_t parameters() const { return parameters_; }
    std::size_t tiles() const { return tiles_of(parameters_); }
    int devices() const { return static_cast<int>(by_device_.size()); }

    // All subgroups in forward order: ascending, without gaps, from tile 0 to tiles().
    const std::vector<Subgroup>& subgroups() const { return subgroups_; }

    // One device's subgroups in forward order.
    const std::vector<Subgroup>& subgroups_of(int device) const;

    // Position in subgroups() of the subgroup that holds `tile`; `tile` < tiles().
    std::size_t subgroup_of_tile(std::size_t tile) const;

    // Most tiles in one subgroup of the device; 0 if it owns none.
    std::size_t largest_subgroup_tiles(int device) const;

    // Parameters of a tile, without padding.
    std::size_t elems_in_tile(std::size_t tile) const;

private:
    std::size_t parameters_;
    std::vector<Subgroup> subgroups_;
    std::vector<std::vector<Subgroup>> by_device_;
};

// Which rank owns which devices: rank r owns [first(r), first(r) + count(r)).
class DeviceMap {
public:
    // Throws ConfigError if there is no rank or no device, or if a count is negative.
    explicit DeviceMap(const std::vector<int>& devices_per_rank);

    int ranks() const { return static_cast<int>(first_.size()) - 1; }
    int devices() const { return first_.back(); }
    int first(int rank) const;
    int count(int rank) const;
    int rank_of(int device) const;

private:
    std::vector<int> first_;  // ranks() + 1 entries
};

// The rank whose device holds the subgroup, a position in partition.subgroups().
int owner_of(const Partition& partition, const DeviceMap& devices, std::size_t subgroup);

}  // namespace nearstep::shard
