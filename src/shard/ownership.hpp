// Who owns what where the optimizer state has copies: pure arithmetic, the same on every rank.
//
// Some ranks hold a copy on their devices together: all ranks the only one, the ranks of each node
// one, or each rank one. Every copy is partitioned over its own devices, which may be other than
// those of the next, so a tile has an owner in each.
#pragma once

#include "shard/partition.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::shard {

struct Copy {
    std::vector<int> ranks;  // ascending, not empty
    DeviceMap devices;       // of `ranks`, numbered by their positions there
    Partition partition;     // over the devices

    // The rank whose device holds the tile.
    int owner_of_tile(std::size_t tile) const;
};

class Ownership {
public:
    // Each rank from 0 on is in one copy; all copies are of the same parameters.
    explicit Ownership(std::vector<Copy> copies);

    int copies() const { return static_cast<int>(copies_.size()); }
    const Copy& copy(int number) const;

    int copy_of(int rank) const;
    const Copy& of_rank(int rank) const { return copy(copy_of(rank)); }

    std::size_t tiles() const { return copies_.front().partition.tiles(); }

    bool owns(int rank, std::size_t tile) const;

    // Those of `ranks` that own the tile, in their order.
    std::vector<int> owners_among(std::span<const int> ranks, std::size_t tile) const;

private:
    std::vector<Copy> copies_;
    std::vector<int> copy_of_;  // per rank
};

}  // namespace nearstep::shard
