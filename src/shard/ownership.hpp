// Assigns owners if the optimizer state has copies: pure arithmetic, the same on every rank.
//
// Groups of ranks hold one copy each on their devices. Every copy is partitioned over its own
// devices, which may differ from those of other copies, so a tile has one owner in each copy.
#pragma once

#include "shard/partition.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace nearstep::shard {

struct Replica {
    std::vector<int> ranks;  // ascending, not empty
    DeviceMap devices;       // of `ranks`, numbered by position there
    Partition partition;     // over the devices
    // The owner of each tile, if ranks own tiles otherwise than by their devices.
    std::vector<int> owners = {};

    // The rank that owns the tile: whose device holds it, or as `owners` says.
    int owner_of_tile(std::size_t tile) const;
};

class Ownership {
public:
    // Every rank from 0 on is in exactly one copy; all copies are of the same parameters.
    explicit Ownership(std::vector<Replica> copies);

    int copies() const { return static_cast<int>(copies_.size()); }
    const Replica& copy(int number) const;
    int ranks() const { return static_cast<int>(copy_of_.size()); }  // of all copies

    int copy_of(int rank) const;
    const Replica& of_rank(int rank) const { return copy(copy_of(rank)); }

    std::size_t tiles() const { return copies_.front().partition.tiles(); }

    bool owns(int rank, std::size_t tile) const;

    // Returns the ranks among `ranks` that own the tile, in the order of `ranks`.
    std::vector<int> owners_among(std::span<const int> ranks, std::size_t tile) const;

private:
    std::vector<Replica> copies_;
    std::vector<int> copy_of_;  // per rank
};

}  // namespace nearstep::shard
